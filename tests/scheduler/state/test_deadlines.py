"""Who is out of time ends with reason `deadline`: waiting requests are never prefilled, running ones stop."""

from fakes.desk import Desk, submission
from msgspec.structs import replace

from noria.proto.base import End
from noria.proto.scheduling import Submission
from noria.services.scheduler.core.interface.events import TimePassed
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.state.request import Request

MS = 1_000_000


def timed(number: int, *, first: int | None = None, whole: int | None = None, output: int = 4) -> Submission:
    return replace(submission(number, output=output), ttl_first_ms=first, ttl_ms=whole)


def test_a_request_that_expires_in_the_queue_is_never_prefilled() -> None:
    desk = Desk(CoreSettings(max_requests_per_batch=1, steps_in_flight=1))
    desk.submit(submission(1, output=50), timed(2, first=5), submission(3, output=2))
    desk.run()
    assert [fill.stream.request for plan in desk.plans for fill in plan.fill] == [1, 3]
    assert desk.end(2) is End.DEADLINE
    assert desk.output(2) == []
    (run,) = desk.runs(2)
    assert "ttl_first_ms" in run.detail
    assert desk.end(1) is desk.end(3) is End.LENGTH


def test_a_plan_made_after_expiry_does_not_hold_the_request_even_if_nothing_told_the_core_of_time() -> None:
    desk = Desk()
    desk.submit(timed(1, first=5), submission(2))
    desk.now_ns += 5 * MS
    assert [fill.stream.request for fill in desk.planned().fill] == [2]


def test_a_running_request_ends_at_the_boundary_between_two_steps_and_gives_its_blocks_back() -> None:
    desk = Desk(CoreSettings(steps_in_flight=2))
    desk.submit(timed(1, whole=6, output=100))
    desk.planned()
    desk.planned()
    desk.done()
    desk.planned()
    desk.now_ns += 5 * MS
    replies = desk.tell(TimePassed())
    assert desk.end(1) is End.DEADLINE
    assert len(desk.output(1)) == 1
    assert replies, "it is told at once"
    while desk.executor.queued:
        desk.done()
        desk.plan()
    assert desk.output(1) == desk.output(1)[:1], "nothing follows its end"
    assert desk.core.state.memory is not None
    assert desk.core.state.memory.cache.used == 0


def test_the_first_token_in_time_is_enough_for_the_first_deadline() -> None:
    desk = Desk()
    desk.submit(timed(1, first=4, output=30))
    desk.run()
    assert desk.end(1) is End.LENGTH


def test_a_deadline_that_is_due_with_nothing_else_happening_is_asked_for() -> None:
    desk = Desk(join=False)
    assert desk.core.due_ns is None
    desk.submit(timed(1, first=5), timed(2, first=3, whole=9))
    assert desk.core.due_ns == desk.now_ns + 3 * MS
    desk.now_ns = desk.core.due_ns
    desk.tell(TimePassed())
    assert desk.end(2) is End.DEADLINE
    assert desk.end(1) is None


def test_a_preempted_request_expires_while_it_waits() -> None:
    desk = Desk()
    desk.submit(timed(1, whole=50, output=100))
    desk.planned()
    desk.done()
    request: Request = next(iter(desk.core.state.requests.values()))
    desk.core._lifecycle.preempt(request, desk.now_ns)
    desk.now_ns += 50 * MS
    desk.tell(TimePassed())
    assert desk.end(1) is End.DEADLINE


def test_deadlines_of_requests_that_ended_do_not_pile_up() -> None:
    desk = Desk()
    for number in range(700):
        desk.submit(timed(number, first=1 << 30, whole=1 << 30, output=1))
        desk.core._lifecycle.forget(desk.core.state.requests[submission(number).stream], desk.now_ns, "", reclaim=False)
    assert len(desk.core.state.deadlines) < 1100
