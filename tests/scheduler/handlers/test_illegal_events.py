"""An event that cannot have happened is refused and changes nothing, the time that is known included."""

from collections.abc import Callable

import pytest
from fakes.desk import Desk, submission
from fakes.executor import geometry
from msgspec.structs import replace

from noria.proto.execution import Failure, Sampled, StepDone, StepFailed
from noria.services.scheduler.core.interface.events import EventBody, IllegalEventError, SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings

LATER_NS = 3_600_000_000_000


def wrong_sample(desk: Desk) -> StepDone:
    """A result whose first sample is of another position."""
    plan = desk.plans[-2]
    entries = desk.core.state.in_flight.steps[0].entries
    first = entries[0].request
    return StepDone(plan.epoch, plan.number, (Sampled(first.stream, first.attempt, 99, (1,)),), 100)


ILLEGAL: dict[str, Callable[[Desk], EventBody]] = {
    "a step that is not the oldest": lambda desk: StepDone(1, desk.plans[-1].number, (), 100),
    "a step of an epoch to come": lambda desk: StepDone(7, 1, (), 100),
    "samples of another position": wrong_sample,
    "the failure of a step that was never sent": lambda desk: StepFailed(1, 999, Failure.ERROR, ""),
    "the failure of an epoch to come": lambda desk: StepFailed(7, 1, Failure.ERROR, ""),
    "an executor without blocks": lambda desk: replace(geometry(), num_blocks=0),
}


def desk_with_two_steps(policy: str) -> Desk:
    """Two steps in flight, one request whose deadline is an hour away at most, and one that waits."""
    desk = Desk(CoreSettings(policy=policy, max_requests_per_batch=2))
    desk.submit(*(replace(submission(number, output=6), ttl_ms=60_000) for number in (1, 2, 3)))
    desk.planned()
    desk.planned()
    return desk


def goes_on(desk: Desk) -> tuple[object, ...]:
    """All that the core says and plans from here on."""
    due_ns, capacity = desk.core.due_ns, desk.core.capacity()
    said, planned = len(desk.replies), len(desk.plans)
    desk.done()
    desk.run()
    return due_ns, capacity, desk.replies[said:], desk.plans[planned:], desk.core.view.counters()


@pytest.mark.parametrize("policy", ["fifo", "fair"])
@pytest.mark.parametrize("name", ILLEGAL)
def test_after_an_illegal_event_everything_goes_on_as_if_it_had_not_been(name: str, policy: str) -> None:
    desk, untouched = desk_with_two_steps(policy), desk_with_two_steps(policy)
    with pytest.raises(IllegalEventError):
        desk.core.apply(SchedulerEvent(desk.now_ns + LATER_NS, ILLEGAL[name](desk)))
    desk.core.check()
    assert goes_on(desk) == goes_on(untouched)
