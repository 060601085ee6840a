"""The pace of starts, from which waits are foretold."""

import pytest

from noria.services.scheduler.core.predict.start_rate import StartRate

MS = 1_000_000


def test_where_slots_lack_a_wait_is_a_matter_of_requests_where_tokens_lack_of_tokens() -> None:
    slots, tokens = StartRate(), StartRate()
    for _ in range(300):
        for pace, by_slots in ((slots, True), (tokens, False)):
            pace.wait(10 * MS, by_slots=by_slots)
            pace.start(50, 0, 0)
    assert (slots.request_ns, slots.token_ns) == (pytest.approx(10 * MS, rel=0.02), 0)
    assert (tokens.request_ns, tokens.token_ns) == (0, pytest.approx(MS / 5, rel=0.02))


def test_a_standstill_shows_though_nobody_starts() -> None:
    pace = StartRate()
    pace.wait(10 * MS, by_slots=True)
    pace.start(50, 0, 0)
    before = pace.request_ns
    pace.wait(500 * MS, by_slots=True)
    assert pace.request_ns > 10 * before


def test_the_pace_follows_one_that_changed() -> None:
    pace = StartRate()
    for gap in (10, 40):
        for _ in range(500):
            pace.wait(gap * MS, by_slots=True)
            pace.start(50, 0, 0)
    assert pace.request_ns == pytest.approx(40 * MS, rel=0.05)


@pytest.mark.parametrize("exceeds", [1.1, 1.6])
def test_the_margin_covers_four_waits_in_five(exceeds: float) -> None:
    pace = StartRate()
    for number in range(3000):
        wait = 100 * (exceeds if number % 10 < 3 else 0.8)
        pace.start(50, int(wait * MS), 100 * MS)
    assert pace.margin == pytest.approx(exceeds, rel=0.15)


def test_the_margin_corrects_waits_foretold_too_long_and_too_short_within_bounds() -> None:
    low, high = StartRate(), StartRate()
    for _ in range(5000):
        low.start(50, MS, 100 * MS)
        high.start(50, 10_000 * MS, 100 * MS)
    assert low.margin == 0.6
    assert high.margin == 4.0
