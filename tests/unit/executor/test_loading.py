"""What is refused before a model is loaded: families, options, and memory that does not suffice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.engine import pick_dtype
from noria.services.executor.families import Architecture, architecture
from noria.services.executor.linear import Floors, Linear, computed_rows
from noria.services.executor.sizing import cores, free_memory, num_blocks
from noria.shared.config import ModelSettings
from noria.shared.errors import UserError

PUBLISHED = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def read(folder: Path, **changes: Any) -> Architecture:
    (folder / "config.json").write_text(json.dumps({**PUBLISHED, **changes}))
    return architecture(folder, 512)


def test_an_older_config_without_rope_parameters_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    assert (found.rope.theta, found.rope.kind, found.rope.factor) == (5e5, "linear", 4.0)
    assert (found.head_dim, found.query_group) == (16, 2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, "'gpt2'"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"model_type": "mistral", "sliding_window": 128}, "--max-model-tokens 128"),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64}, "--max-model-tokens 64"),
        ({"num_hidden_layers": "two"}, "does not describe"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        read(tmp_path, **changes)


def settings(**changes: Any) -> ExecutorConfig:
    values: dict[str, Any] = {
        "max_slots": 4,
        "max_batch_tokens": 64,
        "page_size": 16,
        "num_blocks": None,
        "max_memory_percent": 0.5,
        "threads": None,
    }
    return ExecutorConfig(model=ModelSettings(), **{**values, **changes})


def test_the_cache_takes_what_is_left_but_no_more_than_all_slots_can_use(tmp_path: Path) -> None:
    family = read(tmp_path)
    block_bytes = 2 * 2 * 2 * 16 * 4 * 16
    assert num_blocks(settings(), family, 512, 4, 10**10, 0) == 4 * 32 + 2
    some = num_blocks(settings(), family, 512, 4, 2 * (1_000_000 + 60 * block_bytes), 0)
    assert 34 <= some < 130
    assert num_blocks(settings(num_blocks=7), family, 512, 4, 7 * block_bytes, 0) == 7


def test_too_little_memory_for_one_request_is_an_error_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"512 tokens needs 34 cache blocks .* lower --max-model-tokens"):
        num_blocks(settings(), read(tmp_path), 512, 4, 1_000_000, 0)


def test_more_pinned_blocks_than_memory_are_an_error_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"100000000 cache blocks need 781250 MiB, .* lower --num-blocks"):
        num_blocks(settings(num_blocks=100_000_000), read(tmp_path), 512, 4, 1_000_000, 0)


def test_this_machine_has_cores_and_memory() -> None:
    assert cores() >= 1
    assert free_memory() > 1 << 20


@pytest.mark.parametrize("content", [None, b"", b"\x10" + b"\0" * 40])
def test_damaged_weights_are_an_error_that_says_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read the weights in .* pull the model again"):
        Checkpoint(tmp_path)


def test_few_numbers_of_rows_are_ever_computed_and_little_in_vain() -> None:
    sizes = {rows: computed_rows(rows, 2) for rows in range(1, 2049)}
    assert len(set(sizes.values())) < 50
    assert sizes[1] == 2
    assert all(rows <= computed for rows, computed in sizes.items())
    assert all(computed < 1.25 * rows for rows, computed in sizes.items() if rows > 1)
    assert all(sizes[rows] == rows for rows in (16, 64, 512, 2048))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [64, 1536])
def test_a_product_gives_a_row_the_same_bits_beside_any_others(dtype: torch.dtype, inputs: int) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(96, inputs, generator=generator).to(dtype)
    bias = torch.randn(96, generator=generator).to(dtype)
    x = torch.randn(70, inputs, generator=generator).to(dtype)
    floors = Floors()
    linear = Linear(weight, bias, floors.of(weight, 70))
    if not floors.steady:
        pytest.skip("this processor's kernels have no steady order of summation, which the executor says at start")
    whole = linear(x)
    assert torch.allclose(whole.double(), x.double() @ weight.double().T + bias.double(), rtol=0.02, atol=0.5)
    for count in (1, 2, 3, 5, 11, 33):
        assert torch.equal(linear(x[:count]), whole[:count])


@pytest.mark.parametrize(
    ("flags", "picked"),
    [
        ("avx2 avx512f avx512_bf16", torch.bfloat16),
        ("amx_tile amx_bf16 amx_int8", torch.bfloat16),
        ("avx2 avx512f avx512_vnni", torch.float32),
        (None, torch.float32),
    ],
)
def test_auto_is_bfloat16_only_where_the_processor_multiplies_it(
    tmp_path: Path, flags: str | None, picked: torch.dtype
) -> None:
    processor = tmp_path / "cpuinfo"
    if flags is not None:
        processor.write_text(f"model name: x\nflags\t\t: fpu {flags} sse\n")
    assert pick_dtype("auto", processor) is picked
    assert pick_dtype("bfloat16", processor) is torch.bfloat16
    assert pick_dtype("float32", processor) is torch.float32
