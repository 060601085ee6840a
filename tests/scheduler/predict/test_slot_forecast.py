"""When slots come free, foretold from what those who run have left."""

import pytest
from fakes.desk import Desk, stream, submission

from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.predict.slot_forecast import EndRates, SlotForecast


def ended(tokens: int, *, early: bool, times: int = 3000) -> EndRates:
    """Endings that were all alike."""
    endings = EndRates()
    for _ in range(times):
        endings.ended(tokens, early=early)
    return endings


def test_slots_come_free_as_those_who_run_reach_their_lengths() -> None:
    outlook = SlotForecast([30, 10, 20], ended(10_000, early=False), step_ns=1.0)
    assert [outlook.steps(slots) for slots in (1, 2, 3)] == pytest.approx([10, 20, 30], abs=0.1)


def test_whoever_takes_a_slot_ends_as_others_did_lately() -> None:
    """Two slots that are free at once come free twice in every 50 steps."""
    outlook = SlotForecast([0, 0], ended(50, early=False), step_ns=1.0)
    assert outlook.steps(2 + 4) == pytest.approx(100, rel=0.01)


def test_where_all_end_before_their_length_that_says_nothing_and_the_pace_of_ends_all() -> None:
    outlook = SlotForecast([100_000 + each for each in range(8)], ended(40, early=True), step_ns=1.0)
    assert outlook.steps(1) == pytest.approx(5, rel=0.1)
    assert outlook.steps(16) == pytest.approx(80, rel=0.1)


def test_before_anybody_has_ended_something_is_foretold_all_the_same() -> None:
    assert 0 < SlotForecast([1 << 62], EndRates(), step_ns=1.0).steps(1) < 1000


def test_of_very_many_some_are_taken_together() -> None:
    outlook = SlotForecast(range(1, 1001), ended(100_000, early=False), step_ns=1.0)
    assert [outlook.steps(slots) for slots in (50, 500, 1000)] == pytest.approx([50, 500, 1000], rel=0.05)


def test_a_wait_is_made_of_steps_and_of_the_prompts_in_them() -> None:
    left, endings = [4, 8], ended(10_000, early=False)
    outlook = SlotForecast(left, endings, step_ns=100.0, prompt_ns=7.0, begun_ns=30.0)
    assert outlook.wait_ns(2) == pytest.approx(8 * 100 + 7 + 30, rel=0.01)
    assert outlook.wait_ns(0.5) == pytest.approx(outlook.wait_ns(1) / 2, rel=0.01)
    assert outlook.wait_ns(0) == 0
    coming = SlotForecast(left, endings, coming=1, step_ns=100.0, prompt_ns=7.0)
    assert coming.wait_ns(1) == 0
    assert coming.wait_ns(2) == pytest.approx(4 * 100 + 7, rel=0.01)


def test_who_waits_behind_a_long_answer_is_told_a_longer_wait_than_behind_a_short_one() -> None:
    waits: list[float] = []
    for last in (4, 40):
        desk = Desk(CoreSettings(max_requests_per_batch=1, steps_in_flight=1))
        # What is learned before is the same: only how much the running one has left differs.
        desk.submit(*(submission(number, output=5) for number in range(8)), submission(8, output=last))
        while stream(8) not in {each.stream for each in desk.core.state.decoding}:
            desk.plan()
            desk.done()
        waits.append(desk.core.capacity().classes[0].start_ms)
    assert waits[1] > 2 * waits[0] > 0
