"""A device's rotation, cache and attention, by Triton's interpreter, against plain PyTorch on ragged batches."""

import msgspec
import pytest
import torch
from numerics.attending import Layer, Schedule, attended

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


@pytest.mark.parametrize("cache", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("layer", LAYERS)
def test_device_attention_equals_the_reference(layer: Layer, cache: torch.dtype) -> None:
    layer = msgspec.structs.replace(layer, cache=cache, padding=3)
    want = attended(layer, SHARED)
    got = attended(layer, SHARED, spoilt=True, level="device")
    # The last bit of a number may round an eighth-bit integer, or a float16, the other way.
    assert got.error(want) < {torch.float32: 1e-5, torch.float16: 2e-3, torch.int8: 3e-2}[cache]
