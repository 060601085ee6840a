"""A device's rotation, cache and attention, by Triton's interpreter, against plain PyTorch on ragged batches."""

import sys

import fakes.flashinfer
import msgspec
import pytest
import torch
from executor.numerics.attending import Layer, Schedule, attended

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread")

# Every second step is the device's, over the same cache: the interpreter is slow, and each reads what the other wrote.
SHARED: Schedule = [
    [(1, 0, 3), (3, 0, 260)],
    [(0, 0, 1), (1, 3, 1), (2, 0, 19), (3, 260, 1)],
    [(2, 19, 8), (3, 261, 9)],
    [(1, 4, 1), (2, 27, 13), (3, 270, 8)],
    [(3, 278, 3)],
]
LAYERS = [
    pytest.param(Layer(), id="groups of 3"),
    pytest.param(Layer(heads=2, kv_heads=2, head_dim=64, page_size=7), id="no groups, pages of 7"),
    pytest.param(Layer(heads=8, kv_heads=1, head_dim=20, page_size=1, window=70), id="one key head of 20, pages of 1"),
    pytest.param(Layer(heads=2, kv_heads=1, head_dim=96, window=37, cap=5.0), id="window of 37, capped"),
    pytest.param(Layer(heads=2, kv_heads=1, head_dim=256, head_norm=True, page_size=64), id="head of 256, normed"),
]


@pytest.mark.parametrize(
    ("layer", "cache"),
    [(each.values[0], cache) for each in LAYERS for cache in (torch.float32, torch.int8)]
    + [(LAYERS[0].values[0], torch.float16), (LAYERS[3].values[0], torch.float16)],
)
def test_device_attention_equals_the_reference(layer: Layer, cache: torch.dtype) -> None:
    layer = msgspec.structs.replace(layer, cache=cache, padding=3)
    want = attended(layer, SHARED)
    got = attended(layer, SHARED, level="device")
    # The last bit of a number may round an eighth-bit integer, or a float16, the other way.
    assert got.error(want) < {torch.float32: 1e-5, torch.float16: 2e-3, torch.int8: 3e-2}[cache]


def test_a_cache_of_fp8_is_read_and_written() -> None:
    layer = msgspec.structs.replace(LAYERS[0].values[0], cache=torch.float8_e4m3fn)
    pairs = zip(attended(layer, SHARED, level="device").rows, attended(layer, SHARED).rows, strict=True)
    apart = torch.cat([(a - b).abs().flatten() for a, b in pairs])
    # The interpreter rounds a number in sixty to the wrong power of two.
    assert (apart > 1e-2).float().mean() < 0.1


def test_a_device_uses_the_pages_of_a_window_again() -> None:
    layer = Layer(window=37, page_size=4, step_tokens=25, lengths=(1, 1, 1, 200))
    schedule: Schedule = [[(3, 25 * step, 25)] for step in range(8)]
    want = attended(layer, schedule)
    assert attended(layer, schedule, level="device").error(want) < 1e-5


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer by its documentation, instead of the real one, which computes on GPUs only."""
    monkeypatch.setitem(sys.modules, "flashinfer", fakes.flashinfer)
    monkeypatch.delitem(sys.modules, "noria.services.executor.cuda.layers.flashinfer_attention", raising=False)


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("layer", LAYERS)
def test_flashinfer_is_given_what_the_reference_attends(layer: Layer, padding: int) -> None:
    layer = msgspec.structs.replace(layer, padding=padding)
    assert attended(layer, SHARED, level="flashinfer").error(attended(layer, SHARED)) < 1e-5


@pytest.mark.usefixtures("flashinfer")
def test_flashinfer_is_chosen_for_models_that_it_knows() -> None:
    from noria.services.executor.cuda.layers.flashinfer_attention import knows

    half, wide = torch.float16, Layer(head_dim=128).architecture
    assert knows(wide, half, half)
    assert not knows(wide, half, torch.int8)
    assert not knows(wide, torch.float32, torch.float32)
    assert not knows(Layer(head_dim=96).architecture, half, half)


def test_a_decoded_row_has_the_same_bits_whoever_is_in_the_step() -> None:
    """In float32, which shows in which order parts were joined."""
    layer = Layer(heads=4, kv_heads=2, window=270, lengths=(530, 9, 5), level="", page_size=32)
    before: Schedule = [[(0, 0, 529), (1, 0, 3), (2, 0, 2)]]
    alone = attended(layer, [*before, [(0, 529, 1)]], level="device")
    padded = msgspec.structs.replace(layer, padding=4, shuffle=2)
    for steps in ([(1, 3, 6), (0, 529, 1)], [(1, 3, 1), (2, 2, 1), (0, 529, 1)]):
        together = attended(padded, [*before, steps], level="device")
        assert torch.equal(together.rows[0][529], alone.rows[0][529])


def test_what_nobody_wrote_is_not_looked_at() -> None:
    """Every byte of the cache is 255 at first, which in most formats is no number."""
    schedule: Schedule = [[(0, 0, 1), (1, 0, 5)], [(0, 1, 3), (1, 5, 1)], [(0, 4, 1), (1, 6, 2)]]
    for cache in (torch.float32, torch.int8):
        layer = Layer(window=4, page_size=4, lengths=(5, 8, 1), cache=cache, level="device", padding=2)
        clean = attended(layer, schedule)
        assert attended(layer, schedule, spoilt=True).error(clean) == 0
