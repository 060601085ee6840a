"""A simulated executor: the product's executor shell in front of a fake executor that knows whose token lies where.

The shell checks plans against its slots and lays them out as for a real model; the fake executor takes the same plans,
keeps the map of whose token lies where, and draws each token from the true prefix.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from fakes.executor import VOCABULARY, FakeExecutor, ProtocolError
from fakes.simulated.machine.batch_check import check_batch
from fakes.simulated.machine.clock import MICROSECOND, MILLISECOND, EventQueue
from fakes.simulated.machine.fault_rates import FaultRates

from noria.proto.base import Header, Service, Stream
from noria.proto.execution import Failure, Geometry, StepDone, StepFailed, StepPlan
from noria.services.executor.kv_cache.memory_plan import MemoryPlan, MemoryShare
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.plan_queue import PlanQueue
from noria.services.executor.plan.sampling_metadata import RecentTokens, SamplerOutput, wanted_logprobs
from noria.services.executor.runner.loaded_model import LoadedModel
from noria.services.executor.runner.model_runner import ModelRunner, RunnerEvent, StepBroken, StepComputed
from noria.services.executor.service import ActorPort, ExecutorShell
from noria.shared.telemetry.telemetry import Telemetry

_LOAD_NS = (5 * MILLISECOND, 120 * MILLISECOND)
_STEP_NS = (100 * MICROSECOND, 6 * MILLISECOND)


def loaded_model(geometry: Geometry) -> LoadedModel:
    """Return what loading a model of this geometry would report."""
    shape = ExecutorLimits(
        geometry.max_slots,
        geometry.max_batch_tokens,
        geometry.max_model_tokens,
        geometry.page_size,
        geometry.num_blocks,
        geometry.vocabulary,
        geometry.groups,
        geometry.host_slots,
    )
    return LoadedModel(shape, geometry, 1, MemoryPlan(1, (MemoryShare("weights", 1),), 600, 3), 0.1, True)


def sampled_output(ids: list[int], wanted: int) -> SamplerOutput:
    """Return sampled ids with log-probabilities: that of an id is minus its number; the top ids are it and those after it."""
    top = np.array([[(token + each) % VOCABULARY for each in range(max(wanted, 0))] for token in ids], np.int32)
    top = top.reshape(len(ids), max(wanted, 0))
    return SamplerOutput(np.array(ids, np.int64), -np.array(ids, np.float32), top, -top.astype(np.float32))


@dataclass(slots=True, eq=False)
class _QueuedStep:
    """A batch and its plan; done: its result once it is computed."""

    batch: Batch
    plan: StepPlan
    done: StepDone | None = None


class SimulatedLane:
    """Computes batches in order, each in its time; a step may fail or never end.

    wrong_plans_allowed: a plan that breaks the fake executor's rules ends the process instead of the simulation.
    """

    def __init__(
        self,
        geometry: Geometry,
        queue: EventQueue,
        rates: FaultRates,
        wake: Callable[[], None],
        failed: Callable[[list[Stream], Failure], None],
        hung: Callable[[], None],
        killed: Callable[[], None],
    ) -> None:
        self.fake = FakeExecutor(geometry)
        self.plan: StepPlan | None = None
        self.master = 0
        self._queue = queue
        self._rates = rates
        self._wake = wake
        self._failed = failed
        self._hung = hung
        self._killed = killed
        self._jobs: deque[_QueuedStep] = deque()
        self._outcomes: list[RunnerEvent] = []
        self._held = 0
        self._running = False
        self._closed = False
        self.wrong_plans_allowed = False
        self._broken_epoch: int | None = None
        self._shape = loaded_model(geometry).shape
        self._recent = RecentTokens(geometry.max_slots)
        self._queue.after(rates.between(*_LOAD_NS), lambda: self._report(loaded_model(geometry)))

    @property
    def held(self) -> int:
        return self._held

    def post(self, batch: Batch) -> None:
        """Queue the batch that was made of `plan`."""
        plan = self.plan
        assert plan is not None and (plan.epoch, plan.number) == (batch.epoch, batch.number)
        if plan.number == 1:
            # Steps of an earlier epoch are still computed first; a new scheduler counts from 1.
            for job in self._jobs:
                if self.fake.queued and job.done is None:
                    self._compute(job)
            self.fake.queued.clear()
        self.fake.send(plan)
        self._held += 1
        self._jobs.append(_QueuedStep(batch, plan))
        self._next()

    def collect(self) -> list[RunnerEvent]:
        found, self._outcomes = self._outcomes, []
        self._held -= sum(isinstance(each, StepComputed | StepBroken) for each in found)
        return found

    def close(self) -> bool:
        self._closed = True
        return True

    def _report(self, outcome: RunnerEvent) -> None:
        self._outcomes.append(outcome)
        self._wake()

    def _next(self) -> None:
        if self._running or not self._jobs or self._closed:
            return
        self._running = True
        if self._rates.happens(self._rates.lane_hang):
            self._hung()
            return
        self._queue.after(self._rates.between(*_STEP_NS), self._finish)

    def _finish(self) -> None:
        self._running = False
        if self._closed:
            return
        job = self._jobs.popleft()
        begun = self.fake.queued and self.fake.queued[0] is job.plan
        if begun and any(map(self._rates.poisons, self.fake.touched(job.plan))):
            self._killed()
            return
        try:
            self._report(self._outcome(job))
        except (ProtocolError, AssertionError):
            if not self.wrong_plans_allowed:
                raise
            self._killed()
            return
        self._next()

    def _outcome(self, job: _QueuedStep) -> StepComputed | StepBroken:
        batch = job.batch
        if job.done is None and batch.epoch == self._broken_epoch and batch.number != 1:
            return StepBroken(batch, Failure.ERROR, "an earlier step of the epoch failed")
        self._broken_epoch = None
        if job.done is None:
            failure = self._failure(job.plan)
            if failure is not None:
                self._broken_epoch = batch.epoch
                self._failed(self.fake.touched(job.plan), failure)
                self.fake.fail(failure)
                return StepBroken(batch, failure, "injected")
            self._compute(job)
        assert job.done is not None
        ids = [sampled.ids[0] for sampled in job.done.sampled]
        return StepComputed(batch, sampled_output(ids, wanted_logprobs(batch.sampler) if batch.sampler else -1), 100, 0)

    def _compute(self, job: _QueuedStep) -> None:
        sampler = job.batch.sampler
        if sampler is not None:
            self._recent.complete(sampler)
        job.done = self.fake.step()
        check_batch(job.batch, job.plan, self.fake, self._shape)
        if sampler is not None:
            self._recent.note(sampler, np.array([sampled.ids[0] for sampled in job.done.sampled]))

    def _failure(self, plan: StepPlan) -> Failure | None:
        if self._rates.happens(self._rates.error):
            return Failure.ERROR
        # A step of one token that does not fit condemns its request, rightly.
        if sum(each.length for each in plan.slices) > 1 and self._rates.happens(self._rates.memory):
            return Failure.MEMORY
        return None


class CheckedPlanQueue(PlanQueue[Any]):
    """The product's plan queue; an illegal plan ends the simulation, unless wrong plans are sent on purpose."""

    def __init__(self, lane: SimulatedLane) -> None:
        super().__init__()
        self._lane = lane

    def fail(self, epoch: int, number: int, failure: Failure, detail: str) -> StepFailed:
        right = failure is not Failure.INVALID or self._lane.wrong_plans_allowed
        assert right, f"plan {number} of epoch {epoch} is illegal: {detail}"
        return super().fail(epoch, number, failure, detail)


class SimulatedExecutor(ExecutorShell):
    """The product's executor shell; passes each batch's plan to the simulated lane."""

    def __init__(self, post: ActorPort, telemetry: Telemetry, lane: SimulatedLane) -> None:
        self._simulated = lane

        def make_lane() -> ModelRunner:
            return lane

        super().__init__(post, telemetry, make_lane)
        self._queue = CheckedPlanQueue(lane)

    @property
    def computations(self) -> Counter[tuple[Stream, int]]:
        """Return how often each position of each stream was computed."""
        return self._simulated.fake.computations

    def allow_wrong_plans(self) -> None:
        """Let a wrong plan end the process instead of the simulation."""
        self._simulated.wrong_plans_allowed = True

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        if header.incarnation != self._simulated.master:
            self._simulated.master = header.incarnation
            self._simulated.fake.epoch = 0
        super().receive(sender, header, body)

    def _compute(self, plan: StepPlan, traceparent: str, now_ns: int) -> None:
        self._simulated.plan = plan
        super()._compute(plan, traceparent, now_ns)
