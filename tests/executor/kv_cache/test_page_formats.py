"""Pages of eight-bit integers: what comes back, and that products of queries and keys stay what they were."""

import pytest
import torch

from noria.services.executor.kv_cache.page_formats import FloatPages, Int8Pages, spread


@pytest.mark.parametrize("size", [16, 64, 96, 256])
def test_spreading_both_sides_changes_no_product(size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 5, size, generator=generator)
    assert torch.allclose((spread(a) * spread(b)).sum(-1), (a * b).sum(-1), atol=1e-4)


def test_spreading_makes_a_key_with_one_large_channel_even() -> None:
    key = torch.zeros(64)
    key[5] = 8.0
    assert torch.equal(spread(key).abs(), torch.ones(64))


def test_integers_come_back_within_half_a_step_and_zero_as_zero() -> None:
    store = Int8Pages(4, 2, 16, torch.float32)
    pool = torch.zeros(2, 3, store.page_bytes, dtype=torch.uint8)
    layer = store.layer(pool)
    generator = torch.Generator().manual_seed(1)
    keys, values = torch.randn(2, 5, 32, generator=generator)
    values[3] = 0
    layer.write(torch.tensor([0, 5, 6, 7, 11]), keys, values)
    got_keys, got_values = (part.view(12, 2, 16) for part in layer.gather(torch.tensor([0, 1, 2])))
    for place, row in zip((0, 5, 6, 7, 11), range(5), strict=True):
        for got, want in ((got_keys, spread(keys[row].view(2, 16))), (got_values, values[row].view(2, 16))):
            step = want.abs().amax(-1, keepdim=True) / 127
            assert ((got[place] - want).abs() <= 0.8 * step).all()
    assert not got_values[7].any() and not got_values[1].any()


def test_infinities_and_nan_are_stored_as_finite_numbers() -> None:
    bad = torch.full((1, 32), torch.nan)
    bad[0, 0] = torch.inf
    for store in (Int8Pages(4, 2, 16, torch.float32), FloatPages(4, 32, torch.float32, torch.float16)):
        layer = store.layer(torch.zeros(2, 1, store.page_bytes, dtype=torch.uint8))
        layer.write(torch.tensor([1]), bad.clone(), bad.clone())
        for part in layer.gather(torch.tensor([0])):
            assert part.isfinite().all()
