"""The executor's shell against a model runner that is turned by hand: epochs, failures, order, and what is told to whom."""

from collections import deque
from dataclasses import dataclass, field

import msgspec
from fakes.sampling import drawn
from msgspec.structs import replace

from noria.proto.base import Header, Service, Stream
from noria.proto.execution import (
    Copy,
    Failure,
    Fill,
    Geometry,
    Group,
    Held,
    Inventory,
    Slice,
    Stash,
    StepDone,
    StepFailed,
    StepPlan,
    cache_digest,
)
from noria.proto.lifecycle import State
from noria.proto.sampling import Sampling
from noria.services.executor.kv_cache.memory_plan import MemoryPlan, MemoryShare
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.released_slots import PLANS_KEPT
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.runner.model_runner import (
    BATCHES_IN_FLIGHT_MAX,
    LoadFailed,
    RunnerEvent,
    StepBroken,
    StepComputed,
)
from noria.services.executor.service import HANG_S, ExecutorShell
from noria.shared.actor.shell import Shell
from noria.shared.config.config import TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

SHAPE = ExecutorLimits(
    max_slots=4, max_batch_tokens=64, max_model_tokens=200, page_size=16, num_chunks=40, vocabulary=50
)
GEOMETRY = Geometry("m", (Group(0, 1),), 40, 2, 16, 4, 64, 200, 50, "float32", "cpu")
LOADED = LoadedModel(SHAPE, GEOMETRY, 1, MemoryPlan(1, (MemoryShare("weights", 1),), 600, 3), 0.1, True)


@dataclass(eq=False)
class HandRunner:
    """Computes when told; every sampled id is 9."""

    batches: deque[Batch] = field(default_factory=deque)
    outcomes: list[RunnerEvent] = field(default_factory=list)
    uncollected: int = 0

    @property
    def held(self) -> int:
        return self.uncollected

    def post(self, batch: Batch) -> None:
        assert self.uncollected < BATCHES_IN_FLIGHT_MAX
        self.uncollected += 1
        self.batches.append(batch)

    def collect(self) -> list[RunnerEvent]:
        found, self.outcomes = self.outcomes, []
        self.uncollected -= sum(isinstance(each, StepComputed | StepBroken) for each in found)
        return found

    def close(self) -> bool:
        return True

    def turn(self, failure: Failure | None = None) -> None:
        batch = self.batches.popleft()
        self.outcomes.append(
            StepBroken(batch, failure, "it broke")
            if failure
            else StepComputed(batch, drawn((9,) * len(batch.sampled_rows)), 50, 0)
        )


@dataclass(eq=False)
class Letters:
    """Keeps what is sent."""

    sent: list[msgspec.Struct] = field(default_factory=list)
    stopped: bool = False

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        assert peer is Service.SCHEDULER
        self.sent.append(body)
        return True

    def stop(self) -> None:
        self.stopped = True


class Bench:
    def __init__(self, *, loaded: bool = True) -> None:
        self.runner, self.letters = HandRunner(), Letters()
        telemetry = Telemetry(Service.EXECUTOR, 1, TelemetrySettings())
        self.shell = ExecutorShell(self.letters, telemetry, lambda: self.runner)
        if loaded:
            self.runner.outcomes.append(LOADED)
            self.shell.advance(0)
            self.letters.sent.clear()

    def plan(
        self,
        epoch: int,
        number: int,
        *,
        slices: tuple[Slice, ...] = (),
        fill: tuple[Fill, ...] = (),
        release: tuple[int, ...] = (),
        swap_out: tuple[Copy, ...] = (),
        stash: tuple[Stash, ...] = (),
    ) -> None:
        header = Header("StepPlan", "scheduler", 1)
        plan = StepPlan(epoch, number, slices, fill=fill, release=release, swap_out=swap_out, stash=stash)
        self.shell.receive(Service.SCHEDULER, header, plan)

    def open(self, epoch: int) -> None:
        self.plan(epoch, 1, slices=(Slice(0, 0, 3, False, True),), fill=(filled(1),))

    def turn(self, failure: Failure | None = None) -> list[msgspec.Struct]:
        """Advance, compute one batch, advance; what was sent."""
        self.letters.sent.clear()
        self.shell.advance(0)
        if self.runner.batches:
            self.runner.turn(failure)
        self.shell.advance(0)
        return list(self.letters.sent)


def filled(request: int) -> Fill:
    """A stream in the first slot."""
    return Fill(0, Stream(request, 0), 0, (1, 2, 3), (), Sampling(temperature=0.0), (), ((5, 6),))


def test_geometry_is_told_once_the_model_is_loaded_and_to_each_new_scheduler() -> None:
    bench = Bench(loaded=False)
    bench.shell.joined(Service.SCHEDULER)
    assert bench.letters.sent == []
    assert bench.shell.state() is State.STARTING
    bench.runner.outcomes.append(LOADED)
    bench.shell.advance(0)
    bench.shell.joined(Service.SCHEDULER)
    assert bench.letters.sent == [GEOMETRY, GEOMETRY]
    assert bench.shell.state() is State.READY


def test_a_model_that_cannot_be_loaded_stops_the_process_with_its_reason() -> None:
    bench = Bench(loaded=False)
    bench.runner.outcomes.append(LoadFailed("no such model"))
    bench.shell.advance(0)
    assert bench.letters.stopped
    assert bench.shell.failed == "no such model"


def test_the_next_plan_is_prepared_while_a_step_computes_and_a_third_waits() -> None:
    bench = Bench()
    bench.open(1)
    bench.plan(1, 2, slices=(Slice(0, 3, 1, True, True),))
    bench.plan(1, 3, slices=(Slice(0, 4, 1, True, True),))
    bench.shell.advance(0)
    assert [batch.number for batch in bench.runner.batches] == [1, 2]
    assert bench.shell.snapshot()["queued_plans"] == 3
    done = [bench.turn(), bench.turn(), bench.turn()]
    assert [each.number for (each,) in done if isinstance(each, StepDone)] == [1, 2, 3]
    assert [each.sampled[0].start for (each,) in done if isinstance(each, StepDone)] == [0, 1, 2]
    assert bench.shell.snapshot()["queued_plans"] == 0


def test_a_failed_step_is_told_once_and_the_rest_of_its_epoch_is_discarded() -> None:
    bench = Bench()
    bench.open(1)
    bench.plan(1, 2, slices=(Slice(0, 3, 1, True, True),))
    bench.plan(1, 3, slices=(Slice(0, 4, 1, True, True),))
    assert bench.turn(Failure.MEMORY) == [StepFailed(1, 1, Failure.MEMORY, "it broke")]
    assert bench.turn(Failure.ERROR) == []
    bench.plan(1, 4)
    assert bench.turn() == []
    bench.open(2)
    assert [type(each) for each in bench.turn()] == [StepDone]


def test_an_illegal_plan_fails_as_invalid() -> None:
    bench = Bench()
    bench.open(1)
    bench.plan(1, 3)
    bench.shell.advance(0)
    (failed,) = bench.letters.sent
    assert isinstance(failed, StepFailed)
    assert (failed.number, failed.failure) == (3, Failure.INVALID)


def test_results_of_an_epoch_that_was_replaced_are_not_told() -> None:
    bench = Bench()
    bench.open(1)
    bench.shell.advance(0)
    bench.open(2)
    bench.shell.advance(0)
    assert bench.turn() == []
    assert [(each.epoch, each.number) for each in bench.turn() if isinstance(each, StepDone)] == [(2, 1)]


def test_a_failure_of_the_old_epoch_spares_plans_of_the_new_one_that_wait() -> None:
    bench = Bench()
    bench.open(1)
    bench.plan(1, 2, slices=(Slice(0, 3, 1, True, True),))
    bench.shell.advance(0)
    bench.open(2)
    bench.turn(Failure.ERROR)
    bench.turn(Failure.ERROR)
    assert [(each.epoch, each.number) for each in bench.turn() if isinstance(each, StepDone)] == [(2, 1)]


def held(*output: int, length: int) -> Held:
    """The stream of `Bench.open` as an inventory lists it."""
    ids = (1, 2, 3, *output)
    return Held(0, Stream(1, 0), 0, cache_digest(ids[:length]), length, ((5, 6),), output)


def test_a_new_scheduler_is_told_what_is_held_when_the_steps_under_way_are_done_and_hears_nothing_else_of_them() -> (
    None
):
    bench = Bench()
    bench.open(1)
    for number in (2, 3, 4):
        bench.plan(1, number, slices=(Slice(0, number + 1, 1, True, True),))
    bench.shell.advance(0)
    bench.letters.sent.clear()
    bench.shell.joined(Service.SCHEDULER)
    assert bench.letters.sent == [replace(GEOMETRY, inventory=True)]
    assert bench.turn() == []
    # Two steps were under way; what they sampled nobody has received. Those that waited are not computed.
    assert bench.turn() == [Inventory(1, (held(9, 9, length=4),))]
    assert bench.turn() == []
    assert bench.shell.snapshot()["queued_plans"] == 0


def test_every_scheduler_that_joins_is_told_until_one_opens_an_epoch() -> None:
    bench = Bench()
    bench.open(1)
    bench.turn()
    for _ in range(2):
        bench.shell.lost(Service.SCHEDULER)
        bench.shell.joined(Service.SCHEDULER)
        assert bench.turn() == [Inventory(1, (held(9, length=3),))]
    bench.plan(2, 1)
    bench.turn()
    bench.shell.joined(Service.SCHEDULER)
    assert bench.letters.sent[-1] == GEOMETRY


def test_plans_of_the_former_epoch_are_not_computed_after_an_inventory() -> None:
    bench = Bench()
    bench.open(1)
    bench.turn()
    bench.shell.joined(Service.SCHEDULER)
    bench.turn()
    bench.plan(1, 2, slices=(Slice(0, 3, 1, True, True),))
    assert bench.turn() == []
    assert not bench.runner.batches


def test_a_scheduler_that_opens_an_epoch_is_sent_no_inventory_any_more() -> None:
    bench = Bench()
    bench.open(1)
    bench.shell.advance(0)
    bench.shell.joined(Service.SCHEDULER)
    bench.open(2)
    bench.turn()
    assert [(each.epoch, each.number) for each in bench.turn() if isinstance(each, StepDone)] == [(2, 1)]


def test_nothing_is_held_after_a_step_that_failed_while_nobody_listened() -> None:
    bench = Bench()
    bench.open(1)
    bench.shell.advance(0)
    bench.shell.joined(Service.SCHEDULER)
    assert bench.turn(Failure.ERROR) == [Inventory(1, ())]


def test_a_stream_that_has_left_its_slot_is_told_with_the_token_that_came_after() -> None:
    bench = Bench()
    bench.open(1)
    bench.plan(1, 2, slices=(Slice(0, 3, 1, True, True),))
    bench.plan(1, 3, release=(0,))
    bench.turn()  # now the third plan has released the slot, and the second step is under way
    bench.shell.joined(Service.SCHEDULER)
    told = [each for _ in range(3) for each in bench.turn()]
    assert told == [Inventory(1, (Held(-1, Stream(1, 0), 0, cache_digest(()), 0, (), (9, 9)),))]


def test_a_stream_that_left_its_slot_long_ago_is_forgotten() -> None:
    bench = Bench()
    bench.open(1)
    for number in range(2, PLANS_KEPT + 4):
        bench.turn()
        bench.plan(1, number, release=(0,), fill=(filled(number),))
    while bench.runner.batches or bench.shell.snapshot()["queued_plans"]:
        bench.turn()
    bench.shell.joined(Service.SCHEDULER)
    (inventory,) = bench.turn()
    assert isinstance(inventory, Inventory)
    assert len(inventory.entries) == PLANS_KEPT


def test_what_was_swapped_out_is_told_with_what_was_sampled_after_it_had_left_its_slot() -> None:
    bench = Bench(loaded=False)
    shape, geometry = replace(SHAPE, num_host_chunks=8), replace(GEOMETRY, host_slots=8)
    bench.runner.outcomes.append(replace(LOADED, shape=shape, geometry=geometry))
    bench.shell.advance(0)
    bench.open(1)
    bench.shell.advance(0)
    out = (Copy(0, 5, 2), Copy(0, 6, 3))
    bench.plan(1, 2, release=(0,), swap_out=out, stash=(Stash(0, 3, ((2, 3),)),))
    bench.shell.joined(Service.SCHEDULER)  # the second plan is not applied: its stream is still in its slot
    assert bench.turn() == [Inventory(1, (held(9, length=3),))]
    bench.open(2)
    bench.shell.advance(0)
    bench.plan(2, 2, release=(0,), swap_out=out, stash=(Stash(0, 3, ((2, 3),)),))
    bench.shell.advance(0)
    bench.shell.joined(Service.SCHEDULER)
    bench.turn()
    on_host = replace(held(9, length=3), slot=-1, blocks=((2, 3),))
    assert bench.turn() == [Inventory(2, (on_host,))]
    bench.plan(3, 1)
    bench.turn()
    bench.plan(3, 2, swap_out=(Copy(0, 9, 3),))  # its host blocks are another's now
    bench.turn()
    bench.shell.joined(Service.SCHEDULER)
    assert bench.letters.sent[-1] == geometry


def test_too_many_waiting_plans_end_the_epoch() -> None:
    bench = Bench()
    bench.open(1)
    for number in range(2, 12):
        bench.plan(1, number)
    assert any(isinstance(each, StepFailed) and each.failure is Failure.INVALID for each in bench.letters.sent)


def test_a_step_that_does_not_end_stops_the_process() -> None:
    bench = Bench()
    bench.open(1)
    wanted_ns = bench.shell.advance(0)
    assert wanted_ns == int(HANG_S * 1e9)
    for now_ns in range(0, wanted_ns, 1_000_000_000):
        bench.shell.advance(now_ns)
    assert (bench.shell.hung, bench.letters.stopped) == (False, False)
    bench.shell.advance(wanted_ns)
    assert (bench.shell.hung, bench.letters.stopped) == (True, True)


def test_steps_one_after_the_other_are_no_hang() -> None:
    bench = Bench()
    bench.open(1)
    now_ns = 0
    for number in range(2, 9):
        bench.plan(1, number, slices=(Slice(0, number + 1, 1, True, True),))
        bench.shell.advance(now_ns)
        now_ns += int(HANG_S * 0.9e9)
        bench.runner.turn()
        bench.shell.advance(now_ns)
    assert not bench.shell.hung
