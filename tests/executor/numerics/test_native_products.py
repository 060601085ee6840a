"""Native matrix products against float64, PyTorch and themselves, for each level that this processor runs."""

import ctypes
from pathlib import Path

import pytest
import torch
from executor.numerics.int8_scheme import quantised
from torch.nn import functional

from noria.services.executor.cpu.native.library import levels, open_kernels
from noria.services.executor.cpu.native.linear import NativeLinear, NativeLinearFactory
from noria.services.executor.model.linear_layers import WeightMatrix
from noria.services.executor.model.packed_weights import PackedWeights

SHAPES = ((96, 64), (45, 33), (7, 1), (100, 1537), (64, 576), (33, 2048))
"""Outputs and inputs: whole panels and groups, parts of them, odd numbers, long sums."""
KINDS = (("none", torch.float32), ("none", torch.bfloat16), ("int8", torch.bfloat16), ("int8", torch.float32))
ROWS = 130

pytestmark = pytest.mark.skipif(not levels(), reason="the kernels are not built")


class Given:
    """A checkpoint of one weight and its bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight, self.bias = weight, bias

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        found = self.weight if name.endswith(".weight") else self.bias
        assert found.shape == shape
        return found if dtype is None else found.to(dtype)

    def block_kind(self, name: str, shape: tuple[int, int]) -> None:
        """No weight is kept in blocks."""

    blocks = block_kind


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product_of(
    level: str, weight: torch.Tensor, bias: torch.Tensor, quantization: str, dtype: torch.dtype, threads: int = 2
) -> NativeLinear:
    matrix = WeightMatrix(Given(weight, bias), (("given", len(weight)),), weight.shape[1], bias=True)  # type: ignore[arg-type]
    return NativeLinearFactory(open_kernels(level), dtype, quantization, PackedWeights(), threads).linear(matrix, ROWS)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_as_exact_as_those_of_pytorch(level: str, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    weight, bias = numbers(outputs, inputs, dtype=dtype), numbers(outputs, seed=1).to(dtype)
    x = numbers(ROWS, inputs, dtype=dtype, seed=2)
    exact = x.double() @ weight.double().T + bias.double()
    ours = (product_of(level, weight, bias, "none", dtype)(x).double() - exact).pow(2).mean().sqrt()
    theirs = (functional.linear(x, weight, bias).double() - exact).pow(2).mean().sqrt()
    assert ours <= 2 * theirs + 1e-12


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_products_are_those_of_the_numbers_as_quantised(
    level: str, outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    weight, bias = numbers(outputs, inputs), numbers(outputs, seed=1)
    x = (numbers(ROWS, inputs, seed=2) + 0.3).to(dtype)
    out = torch.empty(ROWS, outputs)
    product_of(level, weight, bias, "int8", dtype).into(x, out)
    exact = quantised(x, symmetric=False) @ quantised(weight, symmetric=True).T + bias.double()
    assert (out.double() - exact).abs().max() <= 2e-5 * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("outputs", "inputs"), [(45, 33), (100, 1537)])
@pytest.mark.parametrize(("quantization", "dtype"), KINDS)
def test_a_row_has_the_same_bits_among_any_others_on_any_number_of_threads(
    level: str, outputs: int, inputs: int, quantization: str, dtype: torch.dtype
) -> None:
    weight, bias = numbers(outputs, inputs), numbers(outputs, seed=1)
    x = numbers(ROWS, inputs, dtype=dtype, seed=2)
    products = [product_of(level, weight, bias, quantization, dtype, threads) for threads in (1, 2)]
    whole = torch.empty(ROWS, outputs)
    products[1].into(x, whole)
    for rows in range(1, ROWS + 1) if inputs < 100 else (1, 2, 5, 12, 13, 64, 97):
        first = (7 * rows) % (ROWS - rows + 1)
        part = torch.empty(rows, outputs)
        products[rows % 2].into(x[first : first + rows].contiguous(), part)
        assert torch.equal(part, whole[first : first + rows]), rows


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(("quantization", "dtype"), KINDS)
def test_a_diseased_row_does_not_touch_the_others(level: str, quantization: str, dtype: torch.dtype) -> None:
    weight, bias = numbers(45, 33), numbers(45, seed=1)
    product = product_of(level, weight, bias, quantization, dtype)
    x = numbers(20, 33, dtype=dtype, seed=2)
    healthy = product(x)
    x[7, 5], x[8] = torch.nan, torch.inf
    found = product(x)
    assert not found[7].isfinite().any()
    assert torch.equal(found[:7], healthy[:7]) and torch.equal(found[9:], healthy[9:])


@pytest.mark.parametrize(("quantization", "dtype"), KINDS)
def test_every_level_packs_the_same_bytes(quantization: str, dtype: torch.dtype) -> None:
    weight, bias = numbers(45, 577), numbers(45, seed=1)
    packed = []
    for level in levels():
        product = product_of(level, weight, bias, quantization, dtype)
        arguments = product._arguments
        packed.append(ctypes.string_at(arguments.weights, product._arrays[0].nbytes))
    assert len(set(packed)) == 1
    assert any(packed[0])


def test_constant_and_empty_groups_are_exact() -> None:
    weight = torch.zeros(32, 96)
    weight[:, 32:64] = 0.5
    x = torch.cat((torch.zeros(3, 32), torch.full((3, 32), 7.25), torch.full((3, 32), -3.0)), 1)
    for level in levels():
        out = product_of(level, weight, torch.zeros(32), "int8", torch.float32)(x)
        assert torch.allclose(out, x @ weight.T, rtol=1e-3)


def test_packed_weights_are_mapped_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / ".noria" / "bfloat16.packed"
    weight, x = numbers(45, 577), numbers(3, 577, dtype=torch.bfloat16)

    def compute(key: str) -> tuple[torch.Tensor, bool, str]:
        packed = PackedWeights(path, key)
        matrix = WeightMatrix(Given(weight, weight[:, 0]), (("given", 45),), 577, bias=True)  # type: ignore[arg-type]
        product = NativeLinearFactory(open_kernels(), torch.bfloat16, "none", packed, 1).linear(matrix, 8)
        return product(x), packed.mapped, packed.keep()

    first, mapped, reason = compute("one")
    assert not mapped and not reason and path.exists()
    second, mapped, _ = compute("one")
    assert mapped and torch.equal(first, second)
    _, mapped, _ = compute("two")
    assert not mapped, "weights of another model were used"
    _, mapped, _ = compute("two")
    assert mapped


@pytest.mark.parametrize("harm", ["cut off", "emptied", "one bit", "another table", "no table"])
def test_a_damaged_file_is_written_again(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "folder" / "x.packed"
    path.parent.mkdir()
    wanted = {name: numbers(50, 70, seed=seed) for seed, name in enumerate("abc")}

    def arrays() -> tuple[dict[str, torch.Tensor], bool]:
        packed = PackedWeights(path, "key")
        found = {name: packed.array(name, lambda array=array: array.clone()) for name, array in wanted.items()}
        mapped = packed.mapped
        assert packed.keep() == ""
        return found, mapped

    arrays()
    content = bytearray(path.read_bytes())
    match harm:
        case "cut off":
            content = content[:-5000]
        case "emptied":
            content = bytearray()
        case "one bit":
            content[-9000] ^= 4
        case "another table":
            content = content.replace(b'"checksum":', b'"checksun":')
        case _:
            content[21:29] = b"\xff" * 8
    path.write_bytes(content)
    for expected in (False, True):
        found, mapped = arrays()
        assert mapped is expected
        assert all(torch.equal(found[name], array) for name, array in wanted.items())
    assert sorted(each.name for each in path.parent.iterdir()) == ["x.packed"]


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    packed = PackedWeights(tmp_path / "file" / "x.packed", "key")
    assert torch.equal(packed.array("a", lambda: torch.ones(3)), torch.ones(3))
    assert "in the way" not in packed.keep() != ""
