"""What a new scheduler takes over from the executor, and what it does not."""

import pytest
from fakes.desk import Desk, generated, stream, submission
from fakes.executor import geometry
from msgspec.structs import replace

from noria.proto.base import Ended
from noria.proto.execution import Inventory
from noria.proto.output import Gap, Resend
from noria.proto.scheduling import Doubt, Submission, Submit
from noria.services.scheduler.core.interface.events import TimePassed
from noria.services.scheduler.core.interface.settings import CoreSettings

ASKED = tuple(submission(number, prompt=9, output=6) for number in (1, 2, 3))


def orphaned(asked: tuple[Submission, ...] = ASKED) -> tuple[Desk, Inventory]:
    """An executor whose scheduler died before it heard of the first step, and what it holds."""
    desk = Desk()
    desk.submit(*asked)
    desk.planned()
    desk.result()
    return desk, desk.executor.inventory()


def succeeded(old: Desk, inventory: Inventory, settings: CoreSettings | None = None) -> Desk:
    """A new scheduler that was told of the executor and what it holds, but not of the streams yet."""
    desk = Desk(settings, join=False)
    desk.executor = old.executor
    desk.tell(replace(old.executor.geometry, inventory=True))
    desk.tell(inventory)
    return desk


def test_nothing_is_planned_before_admission_has_named_everything_and_then_nothing_is_computed_again() -> None:
    desk = succeeded(*orphaned())
    desk.tell(Submit(ASKED[:1]))
    assert desk.plan() is None
    desk.tell(Submit(ASKED[1:], complete=True))
    first = desk.planned()
    assert [fill.cached for fill in first.fill] == [9, 9, 9]
    desk.run()
    assert all(desk.output(number) == generated(ASKED[number - 1]) for number in (1, 2, 3))
    assert set(desk.executor.computations.values()) == {1}
    assert (desk.core.state.counters.adopted, desk.core.state.counters.adopted_tokens) == (3, 27)


def test_a_token_that_was_sampled_and_not_heard_of_is_told() -> None:
    desk = succeeded(*orphaned())
    desk.tell(Resend((Gap(stream(1), 1),)))
    desk.tell(Submit(ASKED, complete=True))
    assert [run.start for run in desk.runs(1)] == [0]
    assert desk.output(1) == generated(ASKED[0])[:1]


@pytest.mark.parametrize("what", ["attempt", "digest", "output", "length"])
def test_a_cache_that_is_not_exactly_the_streams_own_is_not_taken_over(what: str) -> None:
    old, inventory = orphaned()
    first, *rest = inventory.entries
    match what:
        case "attempt":
            first = replace(first, attempt=1)
        case "digest":
            first = replace(first, digest=b"another")
        case "length":
            first = replace(first, length=8)
        case _:
            first = replace(first, output_ids=(30,))
    asked = (replace(ASKED[0], output_ids=tuple(generated(ASKED[0])[:1])), *ASKED[1:])
    desk = succeeded(old, replace(inventory, entries=(first, *rest)))
    desk.tell(Submit(asked, complete=True))
    assert desk.core.state.counters.adopted == 2
    desk.run()
    assert desk.output(1) == generated(ASKED[0])[1:]


@pytest.mark.parametrize("told", ["inventory", "streams"])
def test_after_a_while_it_goes_on_without_what_does_not_come(told: str) -> None:
    old, inventory = orphaned()
    desk = Desk(join=False)
    desk.executor, old.executor.epoch = old.executor, 0
    desk.tell(replace(old.executor.geometry, inventory=True))
    if told == "inventory":
        desk.tell(inventory)
    desk.tell(Submit(ASKED, complete=told == "streams"))
    assert desk.plan() is None
    assert desk.core.due_ns is not None
    desk.now_ns = desk.core.due_ns
    desk.tell(TimePassed())
    desk.run()
    assert desk.output(2) == generated(ASKED[1])
    assert desk.core.state.counters.adopted == (3 if told == "inventory" else 0)


def test_who_ends_before_the_epoch_is_opened_leaves_a_slot_that_the_executor_never_hears_of() -> None:
    desk = succeeded(*orphaned())
    desk.tell(Submit(ASKED, complete=True))
    desk.tell(Ended((stream(2),)))
    first = desk.planned()
    assert (first.release, [fill.stream for fill in first.fill]) == ((), [stream(1), stream(3)])


def test_who_finds_no_slot_any_more_is_computed_again() -> None:
    desk = succeeded(*orphaned(), CoreSettings(max_requests_per_batch=2))
    desk.tell(Submit(ASKED, complete=True))
    assert desk.core.state.counters.adopted == 2
    desk.run()
    assert desk.output(3) == generated(ASKED[2])


def test_pages_that_streams_share_are_counted_once_for_each() -> None:
    asked = tuple(replace(ASKED[0], stream=stream(number)) for number in (1, 2))
    old = Desk()
    old.submit(asked[0])
    old.planned()
    old.done()
    old.submit(asked[1])
    old.planned()
    old.done()
    desk = succeeded(old, old.executor.inventory())
    desk.tell(Submit(asked, complete=True))
    assert desk.core.state.memory is not None
    assert desk.core.state.memory.counts()[0].shared == 2
    desk.run()
    assert desk.output(2) == generated(asked[0])


def test_a_suspect_whose_cache_is_on_the_host_is_taken_over_and_still_runs_apart() -> None:
    old = Desk(shape=geometry(host_slots=8))
    old.submit(ASKED[0])
    old.planned()
    old.result()
    (held,) = old.executor.inventory().entries
    stored = replace(held, slot=-1, blocks=((0, 1, 2),), output_ids=())
    desk = succeeded(old, Inventory(1, (stored,)))
    doubt = Doubt(group=1, failures_alone=0, output_tokens=0)
    desk.tell(Submit((replace(ASKED[0], doubt=doubt), ASKED[1]), complete=True))
    request = desk.core.state.requests[stream(1)]
    assert request.cache.host is not None and request.suspicion.suspected
    assert desk.core.state.suspects.group == [request]
