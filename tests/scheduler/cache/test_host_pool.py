"""Who goes to the host, how they come back, and what happens to those who end in between."""

from fakes.desk import Desk, ending_after, generated, stream, submission
from fakes.executor import FakeExecutor, geometry, hybrid

from noria.proto.execution import Failure, Geometry, StepPlan
from noria.proto.scheduling import Withdraw
from noria.services.scheduler.core.interface.events import ExecutorLost, RequestPhase
from noria.services.scheduler.core.interface.settings import CoreSettings


def desk_of(blocks: int, host: int, *, steps: int = 1, shape: Geometry | None = None) -> Desk:
    """So many usable blocks of one token, and so many on the host."""
    settings = CoreSettings(safety_margin=0.0, steps_in_flight=steps)
    return Desk(settings, shape or geometry(num_blocks=blocks + 2, page_size=1, host_slots=host))


def host_used(desk: Desk) -> int:
    assert desk.core.state.memory is not None
    return sum(desk.core.state.memory.host.used)


def swap_plans(desk: Desk) -> list[StepPlan]:
    return [plan for plan in desk.plans if plan.swap_out or plan.swap_in]


def run_until_swap(desk: Desk) -> None:
    """Plan and compute until a request is on its way to the host."""
    for _ in range(100):
        if desk.plan() is None:
            desk.done()
        if desk.core.state.counters.swaps_out:
            return
    raise AssertionError("nothing was swapped")


def test_the_newest_goes_to_the_host_and_comes_back_without_being_computed_again() -> None:
    desk = desk_of(10, 10)
    first, second = submission(1, prompt=4, output=6), submission(2, prompt=4, output=5)
    desk.submit(first, second)
    desk.run()
    counters = desk.core.state.counters
    assert (counters.swaps_out, counters.swaps_in, counters.resets, counters.recomputed_tokens) == (1, 1, 0, 0)
    assert [each.decision for each in desk.moves(2) if each.phase is RequestPhase.QUEUED] == ["", "swap"]
    out, back = swap_plans(desk)
    # The first page is still cached and is not copied back.
    assert [copy.target for copy in out.swap_out][1:] == [copy.source for copy in back.swap_in]
    (fill,) = back.fill
    (piece,) = [each for each in back.slices if each.slot == fill.slot]
    assert (piece.start, piece.length) == (3 + len(fill.output_ids), 1)
    assert (desk.output(1), desk.output(2)) == (generated(first), generated(second))
    assert desk.executor.computed_tokens == 4 + 5 + 4 + 4
    assert host_used(desk) == 0


def test_all_that_is_swapped_in_a_step_goes_in_one_list() -> None:
    desk = Desk(
        CoreSettings(safety_margin=0.0, steps_in_flight=1),
        geometry(num_blocks=22, page_size=4, host_slots=60, max_slots=8),
    )
    desk.submit(*(submission(number, prompt=7, output=30) for number in range(1, 9)))
    desk.run()
    assert max(len({copy.target for copy in plan.swap_out}) for plan in desk.plans) >= 4
    assert desk.core.state.counters.resets == 0
    for number in range(1, 9):
        assert desk.output(number) == generated(submission(number, prompt=7, output=30))


def test_who_does_not_fit_the_host_is_reset() -> None:
    desk = desk_of(10, 3)
    first, second = submission(1, prompt=4, output=6), submission(2, prompt=4, output=5)
    desk.submit(first, second)
    desk.run()
    assert (desk.core.state.counters.swaps_out, desk.core.state.counters.resets) == (0, 1)
    assert desk.output(2) == generated(second)


def test_a_swap_while_steps_are_in_flight_keeps_the_tokens_they_bring() -> None:
    desk = desk_of(0, 8, steps=2, shape=geometry(num_blocks=6, page_size=2, host_slots=8))
    first, second = submission(1, prompt=4, output=4), submission(2, prompt=3, output=5)
    desk.submit(first, second)
    desk.planned()
    desk.planned()
    assert (desk.core.state.counters.swaps_out, len(desk.executor.queued)) == (1, 2)
    desk.done()
    desk.done()
    assert desk.output(2) == generated(second)[:2]
    desk.run()
    assert (desk.output(1), desk.output(2)) == (generated(first), generated(second))
    assert desk.core.state.counters.recomputed_tokens == 0


def test_a_prompt_under_way_goes_on_where_it_was() -> None:
    desk = Desk(
        CoreSettings(safety_margin=0.0, steps_in_flight=1, max_batch_tokens=4),
        geometry(num_blocks=9, page_size=4, host_slots=8),
    )
    older, prompt = submission(9, prompt=14, output=10), submission(1, prompt=12, output=2)
    desk.submit(older)
    while not desk.core.state.decoding:
        desk.planned()
        desk.done()
    desk.submit(prompt)
    desk.run()
    assert desk.core.state.counters.swaps_out == 1
    assert desk.core.state.counters.recomputed_tokens == 0
    assert (desk.output(9), desk.output(1)) == (generated(older), generated(prompt))


def test_those_on_the_host_come_back_before_new_arrivals() -> None:
    desk = Desk(
        CoreSettings(safety_margin=0.0, max_requests_per_batch=2), geometry(num_blocks=12, page_size=1, host_slots=12)
    )
    desk.submit(submission(1, prompt=4, output=6), submission(2, prompt=4, output=5))
    run_until_swap(desk)
    desk.submit(submission(3, prompt=1, output=2, seniority_ms=1000))
    desk.run()
    assert [fill.stream.request for plan in desk.plans for fill in plan.fill] == [1, 2, 2, 3]


def test_a_stream_withdrawn_before_its_copy_is_ordered_frees_both_ends() -> None:
    desk = desk_of(0, 8, steps=2, shape=geometry(num_blocks=6, page_size=2, host_slots=8))
    first = submission(1, prompt=4, output=4)
    desk.submit(first, submission(2, prompt=3, output=5))
    run_until_swap(desk)
    assert host_used(desk) > 0
    desk.tell(Withdraw((stream(2),)))
    assert host_used(desk) == 0
    desk.run()
    assert not swap_plans(desk)
    assert desk.output(1) == generated(first)


def test_a_stream_withdrawn_while_its_copy_is_in_flight_frees_both_ends() -> None:
    desk = desk_of(10, 10)
    desk.submit(submission(1, prompt=4, output=6), submission(2, prompt=4, output=5))
    run_until_swap(desk)
    while not swap_plans(desk):
        if desk.plan() is None:
            desk.done()
    desk.tell(Withdraw((stream(2),)))
    assert host_used(desk) == 0
    later = submission(3, prompt=4, output=5)
    desk.submit(later)
    desk.run()
    assert desk.output(3) == generated(later)


def test_a_stream_withdrawn_as_it_comes_back_frees_both_ends() -> None:
    desk = desk_of(10, 10)
    desk.submit(submission(1, prompt=4, output=6), submission(2, prompt=4, output=5))
    while not any(plan.swap_in for plan in desk.plans):
        if desk.plan() is None:
            desk.done()
    desk.tell(Withdraw((stream(2),)))
    desk.run()
    assert host_used(desk) == 0
    cache = desk.core.state.cache
    assert cache is not None
    assert cache.available == cache.size


def test_a_stream_that_ends_by_a_token_in_flight_leaves_the_host() -> None:
    # Both steps are in flight when it is swapped out, and the second brings its end.
    desk = desk_of(0, 8, steps=2, shape=geometry(num_blocks=6, page_size=2, host_slots=8))
    second = ending_after(2, 2, prompt=3, output=5)
    desk.submit(submission(1, prompt=4, output=4), second)
    desk.run()
    assert desk.core.state.counters.swaps_out == 1
    assert desk.core.state.counters.swaps_in == 0
    assert desk.output(2) == generated(second)
    assert host_used(desk) == 0


def test_after_a_failed_step_those_on_the_host_are_computed_again() -> None:
    for lost in (False, True):
        desk = desk_of(10, 10)
        first, second = submission(1, prompt=4, output=6), submission(2, prompt=4, output=5)
        desk.submit(first, second)
        run_until_swap(desk)
        if desk.plan() is None:
            desk.done()
            desk.planned()
        if lost:
            desk.executor = FakeExecutor(desk.executor.geometry)
            desk.tell(ExecutorLost())
            desk.tell(desk.executor.geometry)
        else:
            desk.tell(desk.executor.fail(Failure.ERROR))
        assert host_used(desk) == 0
        desk.run()
        assert (desk.output(1), desk.output(2)) == (generated(first), generated(second))


def test_rings_and_tables_of_a_hybrid_survive_the_host() -> None:
    kinds = hybrid(5, 2, 8, (3, 2))
    for steps in (1, 2):
        settings = CoreSettings(safety_margin=0.0, max_batch_tokens=8, steps_in_flight=steps)
        desk = Desk(settings, geometry(num_blocks=17, page_size=2, max_batch_tokens=8, kinds=kinds, host_slots=15))
        asked = [submission(number, prompt=11, output=30) for number in range(1, 5)]
        desk.submit(*asked)
        desk.run()
        assert desk.core.state.counters.swaps_out
        assert desk.core.state.counters.recomputed_tokens == 0
        assert all(desk.output(each.stream.request) == generated(each) for each in asked)


def test_pages_that_are_still_cached_are_shared_and_not_copied_back() -> None:
    desk = desk_of(0, 12, shape=geometry(num_blocks=11, page_size=2, host_slots=12))
    first, second = submission(1, prompt=6, output=8), submission(2, prompt=6, output=6)
    desk.submit(first, second)
    desk.run()
    counters = desk.core.state.counters
    assert counters.swaps_in == 1
    assert sum(len(plan.swap_in) for plan in desk.plans) < sum(len(plan.swap_out) for plan in desk.plans)
    assert (desk.output(1), desk.output(2)) == (generated(first), generated(second))


def test_nobody_is_swapped_twice_without_a_token_in_between() -> None:
    desk = desk_of(14, 40)
    desk.submit(*(submission(number, prompt=3, output=11) for number in range(1, 4)))
    marks: list[int] = []
    while desk.plan() is not None:
        marks += [each.work.preempted_at for each in desk.core.state.waiting if each.stream == stream(3)]
        desk.done()
    swaps = [each for each in desk.moves(3) if each.decision == "swap"]
    assert [each.output_tokens for each in swaps] == sorted({each.output_tokens for each in swaps})
    assert marks == sorted(marks)
