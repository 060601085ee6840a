"""Native rotation, cache and attention against plain PyTorch, and their bits under every way of scheduling."""

import msgspec
import pytest
import torch
from executor.numerics.attending import ALONE, TOGETHER, Layer, Schedule, attended
from executor.numerics.comparison import LEVELS

pytestmark = [
    pytest.mark.skipif(not LEVELS, reason="the kernels are not built"),
    pytest.mark.usefixtures("one_thread"),
]

LAYERS = [
    pytest.param(Layer(), id="groups of 3"),
    pytest.param(Layer(heads=4, kv_heads=4, head_dim=64, page_size=7), id="no groups, pages of 7"),
    pytest.param(Layer(heads=8, kv_heads=1, head_dim=20, page_size=1), id="one key head of 20, pages of 1"),
    pytest.param(Layer(heads=10, kv_heads=2, head_dim=96, page_size=256, window=100), id="groups of 5, window"),
    pytest.param(Layer(head_dim=80, window=37, page_size=16, cap=5.0), id="window of 37, capped"),
    pytest.param(Layer(heads=2, kv_heads=1, head_dim=256, head_norm=True, page_size=1024), id="head of 256, normed"),
    pytest.param(Layer(heads=9, kv_heads=3, head_dim=64), id="groups of 3, heads of 64"),
]
CACHES = [torch.float32, torch.bfloat16, torch.float16, torch.int8]


EVERY = [(level, cache) for level in LEVELS for cache in CACHES if level == LEVELS[-1] or cache in CACHES[1::2]]


@pytest.mark.parametrize(("level", "cache"), EVERY)
@pytest.mark.parametrize("layer", LAYERS)
def test_native_attention_equals_the_reference_in_float32(layer: Layer, cache: torch.dtype, level: str) -> None:
    layer = msgspec.structs.replace(layer, cache=cache)
    want = attended(layer, TOGETHER)
    got = attended(msgspec.structs.replace(layer, level=level), TOGETHER, spoilt=True)
    # The last bit of a number may round an eighth-bit integer, or a bfloat16, the other way.
    assert got.error(want) < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.int8: 3e-2}[cache]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("layer", LAYERS)
def test_native_bfloat16_is_as_near_to_float32_as_the_reference_is(layer: Layer, cache: torch.dtype) -> None:
    true = attended(layer, TOGETHER)
    half = msgspec.structs.replace(layer, cache=cache, dtype=torch.bfloat16)
    want = attended(half, TOGETHER)
    got = attended(msgspec.structs.replace(half, level=LEVELS[-1]), TOGETHER)
    assert got.error(true) < 2 * want.error(true)


SCHEDULES: list[Schedule] = [
    TOGETHER,
    [[(3, 0, 240), (2, 0, 20)], *[[(3, 240 + i, 1), (2, 20 + i, 1)] for i in range(20)]],
    [[(3, 25 * i, 25), (2, 3 * i, 3)] for i in range(11)],
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cache", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("layer", [LAYERS[0], LAYERS[3], LAYERS[4], LAYERS[6]])
def test_a_row_has_the_same_bits_however_it_is_scheduled(layer: Layer, cache: torch.dtype, dtype: torch.dtype) -> None:
    layer = msgspec.structs.replace(layer, cache=cache, dtype=dtype, level=LEVELS[-1])
    alone = attended(layer, ALONE)
    changed = msgspec.structs.replace(layer, threads=2, shuffle=3)
    assert attended(changed, ALONE).same_bits(alone)
    for schedule in SCHEDULES:
        for each in (layer, changed):
            got = attended(each, schedule, spoilt=True)
            done = {(slot, at) for step in schedule for slot, start, n in step for at in range(start, start + n)}
            for slot, at in done:
                assert torch.equal(got.rows[slot][at], alone.rows[slot][at])


@pytest.mark.parametrize("window", [0, 2500])
def test_one_long_sequence_has_the_same_bits_on_one_thread_and_on_several(window: int) -> None:
    # In float32: a bfloat16 seldom shows in which order parts were joined.
    layer = Layer(head_dim=32, window=window, page_size=64, level=LEVELS[-1], lengths=(4300, 20))
    last = [(0, 3741 + i, 1) for i in range(20)]
    schedule: Schedule = [[(0, 0, 2040)], [(0, 2040, 1)], [(0, 2041, 1700)], *[[each] for each in last]]
    # With a mate there is work enough for one thread: only then are its parts computed one after the other.
    mated: Schedule = [*schedule[:3], *[[each, (1, i, 1)] for i, each in enumerate(last)]]
    one = attended(layer, schedule)
    assert torch.equal(attended(layer, mated).rows[0], one.rows[0])
    for threads in (2, 5):
        assert attended(msgspec.structs.replace(layer, threads=threads), schedule).same_bits(one)
    want = attended(msgspec.structs.replace(layer, level=""), schedule)
    assert one.error(want) < 1e-5


@pytest.mark.parametrize("page_size", [4, 16])
def test_pages_of_a_window_are_used_again(page_size: int) -> None:
    layer = Layer(window=37, page_size=page_size, step_tokens=25)
    schedule: Schedule = [[(3, 25 * i, 25)] for i in range(11)]
    native = msgspec.structs.replace(layer, level=LEVELS[-1])
    assert attended(native, schedule, spoilt=True).error(attended(layer, schedule)) < 1e-5


TILED = [
    pytest.param(Layer(heads=9, kv_heads=3, head_dim=64), id="pages of 16"),
    pytest.param(
        Layer(heads=4, kv_heads=2, head_dim=32, page_size=48, window=37, step_tokens=25), id="window, pages of 48"
    ),
    pytest.param(Layer(heads=5, kv_heads=1, head_dim=96, page_size=512, cap=5.0), id="pages of 512, capped"),
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layer", TILED)
def test_tiled_pages_give_the_same_bits_as_others(layer: Layer, level: str) -> None:
    layer = msgspec.structs.replace(layer, dtype=torch.bfloat16, cache=torch.bfloat16, level=level, threads=2)
    schedule: Schedule = [[(3, 25 * i, 25), (1, i, 1)] if i < 5 else [(3, 25 * i, 25)] for i in range(11)]
    plain = attended(layer, schedule, tiled=False)
    assert attended(layer, schedule, spoilt=True).same_bits(plain)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layer", TILED)
def test_what_one_writes_into_tiles_the_other_reads(layer: Layer, level: str) -> None:
    layer = msgspec.structs.replace(layer, dtype=torch.bfloat16, cache=torch.bfloat16)
    native = msgspec.structs.replace(layer, level=level)
    schedule: Schedule = [[(3, 25 * i, 25)] for i in range(11)]
    want = attended(layer, schedule)
    assert attended(native, schedule, level="").error(want) < 3e-2
    assert attended(layer, schedule, level=level).error(want) < 3e-2


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("head_dim", [20, 64, 96])
def test_what_one_writes_the_other_reads(cache: torch.dtype, head_dim: int) -> None:
    layer = Layer(head_dim=head_dim, cache=cache)
    native = msgspec.structs.replace(layer, level=LEVELS[-1])
    want = attended(layer, TOGETHER)
    assert attended(native, TOGETHER, level="").error(want) < 3e-2
    assert attended(layer, TOGETHER, level=LEVELS[-1]).error(want) < 3e-2
