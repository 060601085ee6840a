"""What is refused before a model is loaded: families, options, and memory that does not suffice."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.loading import pick_dtype
from noria.services.executor.kv_cache.layer_groups import cache_groups, layer_groups
from noria.services.executor.kv_cache.memory_plan import MemoryPlan, StepMemory, plan_memory, request_pages
from noria.services.executor.kv_cache.page_formats import page_bytes
from noria.services.executor.model.architecture import Architecture, architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.reference_linear import BatchInvarianceProbe, ReferenceLinear, computed_rows
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.runner.machine import cores, free_memory
from noria.shared.config.config import ModelSettings
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
    return architecture(folder)


def test_an_older_config_without_rope_parameters_is_read(tmp_path: Path) -> None:
    found = read(tmp_path, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    assert [(rope.theta, rope.kind, rope.factor) for rope in found.ropes] == [(5e5, "linear", 4.0)] * 2
    assert (found.head_dim, found.query_group) == (16, 2)


def test_an_older_gemma_config_has_another_theta_for_layers_that_slide(tmp_path: Path) -> None:
    old = {"rope_theta": 5e5, "rope_local_base_freq": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    found = read(tmp_path, model_type="gemma3_text", sliding_window=64, sliding_window_pattern=2, **old)
    assert [(rope.theta, rope.factor) for rope in found.ropes] == [(5e5, 8.0), (3e4, 1.0)]
    assert (found.windows, found.layer_ropes) == ((64, 0), (1, 0))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, "'gpt2'"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "both directions"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "1 layer types for 2 layers"),
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


NOTHING = StepMemory(0, 0, 0, 0, 0)


def shape_of(windows: tuple[int, ...] = (0, 0), context: int = 512, batch: int = 64) -> ExecutorLimits:
    return ExecutorLimits(4, batch, context, 16, RESERVED_CHUNKS, 100, cache_groups(windows, context, batch, 16))


def fit(
    free: int, *, rest: StepMemory = NOTHING, shape: ExecutorLimits | None = None, **changes: Any
) -> tuple[ExecutorLimits, MemoryPlan]:
    """Chunks of 1000 bytes, weights of 5000."""
    return plan_memory(settings(**changes), shape or shape_of(), 1000, free, 5000, rest)


def test_the_cache_takes_what_is_left_but_no_more_than_all_slots_can_use() -> None:
    assert fit(10**9)[0].num_chunks == 4 * 32 + 2 + 1
    assert fit(2 * 65_000)[0].num_chunks == 60
    assert fit(2 * 65_000, rest=StepMemory(7000, 2000, 500, 200, 300))[0].num_chunks == 50
    assert fit(12_000, shape=shape_of(context=80), num_blocks=7)[0].num_chunks == 7


def test_the_table_names_every_byte_and_what_it_holds() -> None:
    _, memory = fit(2 * 105_000, rest=StepMemory(7000, 2000, 500, 200, 300))
    assert sum(share.bytes for share in memory.shares) == 105_000
    assert {share.name: share.bytes for share in memory.shares}["cache"] == 90_000
    assert (memory.full_requests, memory.cache_tokens) == (2, 88 * 16)


def test_too_little_memory_for_one_request_is_an_error_with_numbers() -> None:
    with pytest.raises(UserError, match=r"512 tokens, needs 34 cache blocks .* there are 33, which hold 496 tokens"):
        fit(2 * 38_999)
    with pytest.raises(UserError, match=r"--max-memory-percent 0\.001 may be used"):
        fit(10**6, max_memory_percent=0.001)
    assert fit(2 * 39_000)[0].num_chunks == 34


@pytest.mark.parametrize("windows", [(0, 0), (64, 64), (64, 0, 64)])
@pytest.mark.parametrize("blocks", [3, 9])
def test_pinned_blocks_that_hold_no_whole_request_are_an_error_that_says_what_would_do(
    windows: tuple[int, ...], blocks: int
) -> None:
    def start(context: int, num_blocks: int) -> int:
        return fit(10**9, shape=shape_of(windows, context), num_blocks=num_blocks)[0].num_chunks

    with pytest.raises(UserError, match=r"raise --num-blocks to at least \d+$") as refused:
        start(4096, blocks)
    needed = int(str(refused.value).rpartition(" ")[2])
    assert start(4096, needed) == needed
    with pytest.raises(UserError):
        start(4096, needed - 1)


def test_the_advice_of_too_small_a_cache_is_enough_and_no_more_than_that() -> None:
    def advice(free: int, context: int, **changes: Any) -> dict[str, float]:
        with pytest.raises(UserError) as refused:
            fit(free, shape=shape_of(context=context), **changes)
        found = re.findall(r"(--[a-z-]+) to at (?:least|most) ([\d.]+)", str(refused.value))
        return {option: float(value) for option, value in found}

    pinned = advice(10**9, 512, num_blocks=20)
    assert pinned == {"--max-model-tokens": 18 * 16, "--num-blocks": 34}
    assert fit(10**9, shape=shape_of(context=18 * 16), num_blocks=20)
    sized_by_memory = advice(70_000, 512)
    assert sized_by_memory == {"--max-model-tokens": 28 * 16, "--max-memory-percent": 0.56}
    assert fit(70_000, shape=shape_of(context=28 * 16))
    assert fit(70_000, max_memory_percent=0.56)
    with pytest.raises(UserError, match=r"give it 1 MiB more memory"):
        fit(30_000)
    assert "--max-memory-percent" not in advice(30_000, 512), "all of the memory would not suffice"


def test_a_host_pool_takes_its_share_of_what_stays_free_and_no_more() -> None:
    left = 2**20
    shape, memory = fit(45_000 + left, num_blocks=40, host_gib=0.5 / 1024)
    assert shape.num_host_chunks == 2**19 // 1000
    assert memory.shares[-1].bytes == shape.num_host_chunks * 1000
    with pytest.raises(UserError, match=r"asks for 0 MiB.* --cpu-offload-space"):
        fit(45_000 + left, num_blocks=40, host_gib=0.9 / 1024)


def test_layers_that_see_as_far_form_a_group_whose_blocks_tile_the_chunk() -> None:
    windows = (512, 512, 0, 512, 0, 512)
    assert layer_groups(windows, 4096) == ((1, 0), (1, 1), (0, 0), (1, 2), (0, 1), (1, 3))
    full, sliding = cache_groups(windows, 4096, 100, 16)
    assert (full.window, full.layers, full.blocks_per_chunk, full.ring_pages) == (0, 2, 2, 0)
    assert (sliding.window, sliding.layers, sliding.blocks_per_chunk, sliding.ring_pages) == (512, 4, 1, 40)
    assert cache_groups(windows, 512, 100, 16) == cache_groups((0,) * 6, 512, 100, 16)


def test_a_sliding_layer_keeps_its_window_and_the_largest_slice_of_32k_tokens() -> None:
    shape = shape_of((512, 512), 32768, 256)
    (pages,) = request_pages(shape, 32768)
    assert pages * 16 == 512 + 256 + 16
    assert fit(2 * 10**9, shape=shape)[1].full_requests >= 4


@pytest.mark.parametrize(("name", "share"), [("smollm2", 0.55), ("gemma3", 0.55)])
def test_int8_takes_little_more_than_half_of_bfloat16(tmp_path: Path, name: str, share: float) -> None:
    sizes = {"smollm2": (576, 9, 3), "gemma3": (1024, 4, 1)}[name]
    family = read(
        tmp_path, **dict(zip(("hidden_size", "num_attention_heads", "num_key_value_heads"), sizes, strict=True))
    )
    assert page_bytes(family, 16, torch.int8) <= share * page_bytes(family, 16, torch.bfloat16)


def test_more_pinned_blocks_than_memory_are_an_error_with_numbers() -> None:
    with pytest.raises(UserError, match=r"100000000 cache blocks need 95367 MiB, but 1 MiB are free, .* at most 1048 "):
        fit(2**20 + 5000, num_blocks=100_000_000)
    rest = StepMemory(7000, 2000, 500, 200, 300)
    with pytest.raises(UserError, match=r"weights take .* logits .* lower --num-blocks to at most 33 "):
        fit(48_999, rest=rest, num_blocks=34)
    assert fit(49_000, rest=rest, num_blocks=34)


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
    floors = BatchInvarianceProbe()
    linear = ReferenceLinear(weight, bias, floors.of(weight, 70))
    if not floors.batch_invariant:
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
