"""Who gets blocks, who waits for them and who gives way."""

import pytest
from fakes.desk import Desk, generated, stream, submission
from fakes.executor import geometry

from noria.proto.output import Gap, Progress
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.cache.chunk_pool import CacheChunkPool
from noria.services.scheduler.core.cache.request_blocks import Prefix
from noria.services.scheduler.core.interface.events import RequestPhase
from noria.services.scheduler.core.interface.settings import CoreSettings


def blank(desk: Desk) -> int:
    assert desk.core.state.cache is not None
    return desk.core.state.cache.available


def small(blocks: int, *, page_size: int = 1, groups: int = 1) -> Desk:
    """A pool of so many usable blocks, no margin, one step in flight."""
    settings = CoreSettings(safety_margin=0.0, steps_in_flight=1)
    return Desk(settings, geometry(num_blocks=blocks + 2, page_size=page_size, groups=groups))


def test_blocks_are_allocated_for_what_is_computed_and_not_for_what_may_come() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=4), geometry(num_blocks=22, page_size=4))
    desk.submit(submission(1, prompt=12, output=40))
    desk.planned()
    assert blank(desk) == 19
    desk.planned()
    assert blank(desk) == 18


def test_reserved_blocks_are_never_given_out() -> None:
    pool = CacheChunkPool(10, 3)
    assert sorted(pool.take(pool.blank)) == [3, 4, 5, 6, 7, 8, 9]


def test_a_prompt_is_admitted_only_when_all_its_blocks_are_there() -> None:
    desk = small(10)
    desk.submit(submission(1, prompt=6, output=3), submission(2, prompt=5, output=2))
    assert list(desk.lengths(desk.planned())) == [1]
    desk.run()
    assert len(desk.output(2)) == 2


def test_blocks_promised_to_a_prompt_under_way_are_not_given_to_arrivals() -> None:
    desk = Desk(
        CoreSettings(safety_margin=0.0, steps_in_flight=1, max_batch_tokens=4), geometry(num_blocks=14, page_size=1)
    )
    desk.submit(submission(1, prompt=9, output=1))
    desk.planned()
    desk.done()
    desk.submit(submission(2, prompt=4, output=1, seniority_ms=99), submission(3, prompt=3, output=1))
    desk.run()
    assert desk.core.state.counters.resets == 0


def test_a_prompt_needs_its_blocks_in_every_group() -> None:
    desk = small(8, groups=2)
    desk.submit(submission(1, prompt=2, output=2), submission(2, prompt=3, output=1))
    first = desk.planned()
    assert [len(table) for table in first.fill[0].blocks] == [2, 2]
    assert list(desk.lengths(first)) == [1]


@pytest.mark.parametrize(
    ("policy", "margin", "admitted"),
    [("fifo", None, [1]), ("fifo", 0.0, [1, 2]), ("prefill_first", None, [1, 2]), ("prefill_first", 0.2, [1])],
)
def test_arrivals_leave_a_margin_of_blocks_to_running_requests(
    policy: str, margin: float | None, admitted: list[int]
) -> None:
    desk = Desk(CoreSettings(policy=policy, safety_margin=margin), geometry(num_blocks=22, page_size=1))
    desk.submit(submission(1, prompt=9), submission(2, prompt=9))
    assert list(desk.lengths(desk.planned())) == admitted


def test_the_margin_is_waived_when_nothing_runs() -> None:
    desk = Desk(CoreSettings(safety_margin=0.5), geometry(num_blocks=22, page_size=1))
    desk.submit(submission(1, prompt=18, output=2))
    assert list(desk.lengths(desk.planned())) == [1]


def test_when_blocks_run_out_the_newest_is_reset_and_keeps_its_tokens() -> None:
    desk = small(10)
    first, second = submission(1, prompt=4, output=6), submission(2, prompt=4, output=5)
    desk.submit(first, second)
    desk.run()
    assert desk.core.state.counters.resets == 1
    assert [each.decision for each in desk.moves(2) if each.phase is RequestPhase.QUEUED] == ["", "reset"]
    assert not [each for each in desk.moves(1) if each.decision == "reset"]
    refill = [fill for plan in desk.plans for fill in plan.fill if fill.stream == stream(2)][1]
    assert refill.output_ids == tuple(generated(second)[: len(refill.output_ids)]) != ()
    assert (desk.output(1), desk.output(2)) == (generated(first), generated(second))


def test_a_reset_request_goes_before_those_that_came_later() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0, max_requests_per_batch=2), geometry(num_blocks=12, page_size=1))
    desk.submit(submission(1, prompt=4, output=6), submission(2, prompt=4, output=5), submission(3, prompt=1, output=2))
    desk.run()
    assert [fill.stream.request for plan in desk.plans for fill in plan.fill] == [1, 2, 2, 3]


def test_the_oldest_is_never_reset_whoever_started_first() -> None:
    desk = small(12)
    desk.submit(submission(1, prompt=4, output=8))
    desk.planned()
    desk.done()
    desk.submit(submission(2, prompt=4, output=8, seniority_ms=500))
    desk.run()
    assert [each.decision for each in desk.moves(1) if each.phase is RequestPhase.QUEUED] == ["", "reset"]
    assert [each.decision for each in desk.moves(2) if each.phase is RequestPhase.QUEUED] == [""]


def test_nobody_is_reset_for_blocks_that_a_step_in_flight_gives_back() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0), geometry(num_blocks=12, page_size=1))
    desk.submit(submission(1, prompt=4, output=5), submission(2, prompt=4, output=2))
    desk.run()
    assert desk.core.state.counters.resets == 0
    assert len(desk.output(1)) == 5


@pytest.mark.parametrize(
    ("blocks", "sizes"), [(16, ((5, 8), (2, 8), (2, 4), (2, 10))), (18, ((3, 12), (2, 5), (5, 3), (2, 8)))]
)
def test_a_request_is_not_reset_twice_without_a_token_in_between(
    blocks: int, sizes: tuple[tuple[int, int], ...]
) -> None:
    """Found by search: without that rule the newest would be reset again, right after it was computed anew."""
    desk = Desk(CoreSettings(safety_margin=0.0, max_batch_tokens=16), geometry(num_blocks=blocks, page_size=1))
    asked = [submission(number, prompt, output) for number, (prompt, output) in enumerate(sizes)]
    desk.submit(*asked)
    desk.run()
    for number, each in enumerate(asked):
        had = [move.output_tokens for move in desk.moves(number) if move.decision == "reset"]
        assert had == sorted(set(had))
        assert desk.output(number) == generated(each)
    assert sum(move.decision == "reset" for move in desk.moves(3)) >= 2


def test_a_reset_while_steps_are_in_flight_keeps_the_tokens_they_bring() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0), geometry(num_blocks=6, page_size=2))
    first, second = submission(1, prompt=4, output=4), submission(2, prompt=3, output=5)
    desk.submit(first, second)
    assert desk.lengths(desk.planned()) == {1: 4, 2: 3}
    assert desk.lengths(desk.planned()) == {2: 1}
    assert desk.core.state.counters.resets == 1
    desk.done()
    desk.done()
    assert desk.output(2) == generated(second)[:2]
    desk.run()
    assert (desk.output(1), desk.output(2)) == (generated(first), generated(second))


def test_nobody_is_reset_while_the_oldest_waits_for_the_detokenizer() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0, stop_lookahead=1), geometry(num_blocks=10, page_size=1))
    desk.submit(submission(1, prompt=3, output=4, stop_strings=True), submission(2, prompt=4, output=4))
    desk.run()
    assert [len(desk.output(number)) for number in (1, 2)] == [1, 2]
    assert desk.core.state.counters.resets == 0
    desk.tell(Progress((Gap(stream(1), 4),)))
    desk.run()
    assert [len(desk.output(number)) for number in (1, 2)] == [4, 4]


@pytest.mark.parametrize(("groups", "expected"), [(1, 80), (2, 40), (3, 24)])
def test_the_largest_request_has_an_even_share_of_blocks_in_every_group(groups: int, expected: int) -> None:
    assert CacheAllocator(geometry(num_blocks=22, page_size=4, groups=groups)).largest_tokens == expected


def test_an_allocation_is_all_or_nothing() -> None:
    cache = CacheAllocator(geometry(num_blocks=7, page_size=2, groups=2))
    holding = cache.open(Prefix(b"", (1, 2, 3), [], 2), [])
    assert cache.extend(holding, 5) is None
    assert holding.tables == ([], [])
    assert cache.extend(holding, 4) is not None
    assert (cache.room(holding), cache.pool.blank) == (4, 1)
    cache.release(holding)
    assert cache.pool.blank == 5


def test_a_pool_notices_a_block_with_two_owners_and_a_lost_one() -> None:
    pool = CacheChunkPool(10, 2)
    taken = pool.take(3)
    pool.check(taken)
    for wrong in (taken[:2], [*taken, taken[0]], [*taken[:2], 0]):
        with pytest.raises(AssertionError):
            pool.check(wrong)
