"""Epochs, failures and results that come out of turn."""

import pytest
from fakes.desk import Desk, generated, stream, submission
from fakes.executor import FakeExecutor, geometry

from noria.proto.base import End
from noria.proto.execution import Failure, Inventory, Sampled, StepDone, StepFailed
from noria.proto.output import TokenRun
from noria.services.scheduler.core.interface.events import EventBody, ExecutorLost, IllegalEventError, SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings


def running(settings: CoreSettings | None = None, *, requests: int = 3) -> Desk:
    """A desk with two steps in flight and one done."""
    desk = Desk(settings)
    desk.submit(*(submission(number, prompt=5, output=6) for number in range(1, requests + 1)))
    desk.planned()
    desk.planned()
    desk.done()
    desk.planned()
    return desk


def test_plans_are_numbered_from_one_in_each_epoch() -> None:
    desk = running()
    assert [(plan.epoch, plan.number) for plan in desk.plans] == [(1, 1), (1, 2), (1, 3)]
    desk.tell(desk.executor.fail(Failure.ERROR))
    assert (desk.planned().epoch, desk.plans[-1].number) == (2, 1)


def test_a_new_executor_gets_everything_that_was_active_again_and_no_token_changes() -> None:
    desk = running()
    desk.executor = FakeExecutor(geometry())
    desk.tell(desk.executor.geometry)
    first = desk.planned()
    assert [fill.stream for fill in first.fill] == [stream(1), stream(2), stream(3)]
    assert all(len(fill.output_ids) == 1 for fill in first.fill)
    desk.run()
    assert all(desk.output(number) == generated(submission(number, 5, 6)) for number in (1, 2, 3))


def test_active_requests_go_before_waiting_ones_after_an_epoch() -> None:
    desk = Desk(CoreSettings(max_requests_per_batch=1))
    desk.submit(submission(1), submission(2))
    desk.planned()
    desk.tell(desk.executor.fail(Failure.ERROR))
    assert list(desk.lengths(desk.planned())) == [1]


def test_results_of_an_older_epoch_are_ignored() -> None:
    desk = running()
    late = desk.result()
    desk.executor = FakeExecutor(geometry())
    desk.tell(desk.executor.geometry)
    desk.planned()
    assert not [each for each in desk.tell(late) if isinstance(each, TokenRun)]
    assert desk.tell(StepFailed(1, 3, Failure.ERROR, "late")) == []
    assert desk.core.state.in_flight.epoch == 2
    desk.run()
    assert desk.output(1) == generated(submission(1, 5, 6))


def test_while_the_executor_is_lost_nothing_is_planned_and_nothing_is_forgotten() -> None:
    desk = running()
    desk.tell(ExecutorLost())
    assert desk.plan() is None
    assert not desk.core.capacity().ready
    assert len(desk.core.state.waiting) == 3
    desk.executor = FakeExecutor(geometry())
    desk.tell(desk.executor.geometry)
    assert desk.core.capacity().ready
    desk.run()
    assert desk.output(3) == generated(submission(3, 5, 6))


def test_what_no_longer_fits_a_new_executor_ends_with_an_error() -> None:
    desk = running(requests=1)
    desk.executor = FakeExecutor(geometry(num_blocks=4))
    desk.tell(desk.executor.geometry)
    assert desk.end(1) is End.ERROR


def test_after_running_out_of_memory_the_step_is_retried_smaller_and_recovers_later() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=16))
    desk.submit(submission(1, prompt=40, output=150))
    desk.planned()
    desk.tell(desk.executor.fail(Failure.MEMORY))
    assert desk.lengths(desk.planned()) == {1: 8}
    desk.tell(desk.executor.fail(Failure.MEMORY))
    assert desk.lengths(desk.planned()) == {1: 4}
    desk.run()
    assert desk.output(1) == generated(submission(1, prompt=40, output=150))
    desk.submit(submission(2, prompt=40))
    assert desk.lengths(desk.planned()) == {2: 16}


def test_who_runs_out_of_memory_alone_with_one_token_ends_with_an_error() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=2))
    desk.submit(submission(1, prompt=9))
    for _ in range(2):
        desk.planned()
        desk.tell(desk.executor.fail(Failure.MEMORY))
    assert desk.end(1) is End.ERROR
    assert "injected" in desk.runs(1)[0].detail


def test_after_a_failure_that_leaves_nothing_to_do_the_executor_learns_that_its_slots_are_empty() -> None:
    desk = running(requests=1)
    for _ in range(2):
        desk.tell(desk.executor.fail(Failure.ERROR))
        desk.planned()
    desk.run()
    assert desk.executor.slots == 0


def altered(desk: Desk, kind: str) -> EventBody:
    """A result that nobody who keeps to the protocol would send."""
    right = desk.result()
    first, *rest = right.sampled
    match kind:
        case "out of order":
            return StepDone(right.epoch, right.number + 1, right.sampled)
        case "never planned":
            return StepDone(right.epoch, right.number + 7, right.sampled)
        case "an epoch to come":
            return StepDone(right.epoch + 1, 1, right.sampled)
        case "a failure of what is not in flight":
            return StepFailed(right.epoch, right.number + 2, Failure.ERROR, "")
        case "a token too few":
            return StepDone(right.epoch, right.number, tuple(rest))
        case "another stream":
            return StepDone(right.epoch, right.number, (Sampled(stream(9), 0, first.start, first.ids), *rest))
        case "another position":
            return StepDone(right.epoch, right.number, (Sampled(first.stream, 0, 5, first.ids), *rest))
        case "another attempt":
            return StepDone(right.epoch, right.number, (Sampled(first.stream, 1, first.start, first.ids), *rest))
        case "no ids":
            return StepDone(right.epoch, right.number, (Sampled(first.stream, 0, first.start, ()), *rest))
        case _:
            return geometry(num_blocks=2)


@pytest.mark.parametrize(
    "kind",
    [
        "out of order",
        "never planned",
        "an epoch to come",
        "a failure of what is not in flight",
        "a token too few",
        "another stream",
        "another position",
        "another attempt",
        "no ids",
        "an empty cache",
    ],
)
def test_an_illegal_event_raises_and_changes_nothing(kind: str) -> None:
    desk, twin = running(), running()
    with pytest.raises(IllegalEventError):
        desk.core.apply(SchedulerEvent(desk.now_ns, altered(desk, kind)))
    desk.core.check()
    right = twin.result()
    assert desk.core.apply(SchedulerEvent(desk.now_ns, right)) == twin.core.apply(SchedulerEvent(twin.now_ns, right))
    assert desk.core.plan(desk.now_ns) == twin.core.plan(twin.now_ns)


def test_a_plan_refused_while_an_earlier_step_computes_voids_both_and_no_token_changes() -> None:
    desk = running()
    desk.result()
    failed = desk.executor.fail(Failure.INVALID)
    assert failed.number == 3
    desk.tell(failed)
    desk.run()
    assert all(desk.output(number) == generated(submission(number, 5, 6)) for number in (1, 2, 3))


def test_an_inventory_that_nobody_waits_for_changes_nothing() -> None:
    desk = running()
    assert desk.tell(Inventory(1, ())) == []
