"""Token buckets: their level, debts, and waits."""

import pytest

from noria.services.admission.core.tenants.token_bucket import TokenBucket

SECOND = 1_000_000_000


def test_a_full_bucket_gives_its_burst_and_refills_at_its_rate() -> None:
    bucket = TokenBucket(600, 100, 0)
    bucket.take(100, 0)
    assert bucket.level(0) == 0
    assert bucket.level(SECOND) == pytest.approx(10)
    assert bucket.level(3600 * SECOND) == 100


@pytest.mark.parametrize(("tokens", "wait_ms"), [(0, 0), (40, 0), (41, 100), (100, 6000)])
def test_the_wait_is_until_as_many_tokens_are_there(tokens: int, wait_ms: int) -> None:
    bucket = TokenBucket(600, 100, 0)
    bucket.take(60, 0)
    assert bucket.wait_ms(tokens, 0) == wait_ms
    # Honest: one millisecond less would not do.
    assert wait_ms == 0 or bucket.wait_ms(tokens, (wait_ms - 1) * 1_000_000) > 0
    assert bucket.wait_ms(tokens, wait_ms * 1_000_000) == 0


def test_what_was_used_beyond_the_bucket_is_owed_and_what_was_not_used_is_given_back() -> None:
    bucket = TokenBucket(60, 100, 0)
    bucket.take(150, 0)
    assert bucket.level(0) == -50
    assert bucket.wait_ms(1, 0) == 51_000
    bucket.take(-1000, 0)
    assert bucket.level(0) == 100


def test_another_size_keeps_what_has_been_used() -> None:
    bucket = TokenBucket(60, 100, 0)
    bucket.take(30, 0)
    bucket.resize(120, 200, 0)
    assert (bucket.level(0), bucket.capacity) == (170, 200)
    bucket.resize(120, 20, 0)
    assert bucket.level(0) == -10
