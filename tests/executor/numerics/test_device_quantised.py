"""Products with weights in eight bits by torchao, where it is installed, are near those in full precision, and smaller."""

from pathlib import Path

import pytest
import torch
from executor.numerics.test_families import build

from noria.services.executor.cuda.layers.installed import installed
from noria.services.executor.cuda.layers.linear import DeviceLinearFactory
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.linear_layers import WeightMatrix
from noria.shared.errors import UserError

INSTALLED = installed("torchao")
CPU = torch.device("cpu")


@pytest.mark.skipif(not INSTALLED, reason="torchao is not installed")
@pytest.mark.parametrize(("kind", "error"), [("int8", 0.01), ("fp8", 0.06)])
def test_a_quantised_product_is_near_and_half_as_large(kind: str, error: float, tmp_path: Path) -> None:
    build("Llama", {"mlp_bias": True}, tmp_path)
    parts = tuple((f"model.layers.0.mlp.{name}_proj", 160) for name in ("gate", "up"))
    matrix = WeightMatrix(Checkpoint(tmp_path), parts, 96, True)
    plain, products = DeviceLinearFactory(torch.float32, CPU), DeviceLinearFactory(torch.float32, CPU, kind)
    x = torch.randn(7, 96, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected, found = (each.linear(matrix, 7)(x) for each in (plain, products))
    assert 0 < (found - expected).abs().max() < error * expected.abs().max()
    assert products.nbytes < plain.nbytes / 3.5
    gate = products.linear(matrix, 7, exact=True)
    assert torch.equal(gate(x), expected), "what decides is never quantised"


@pytest.mark.skipif(INSTALLED, reason="torchao is installed")
def test_without_torchao_the_error_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"executor\.quantization fp8 needs torchao.*noria\[torchao\]"):
        DeviceLinearFactory(torch.float32, CPU, "fp8")
