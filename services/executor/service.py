"""The executor's shell: plans in, results out, one lane in between.

It loads the model on the lane while it already answers greetings and inspection, and prepares plans while the lane
computes. What it holds outlives the scheduler: to the next one it tells that, as soon as no step is under way.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, assert_never

import msgspec

from noria.proto.base import Header, Service
from noria.proto.execution import Failure, StepDone, StepFailed, StepPlan
from noria.proto.lifecycle import State
from noria.services.executor.batch import Batch, prepare, results
from noria.services.executor.inventory import inventory
from noria.services.executor.lane import LANE_BATCHES, Broken, Computed, Lane, LoadFailed, Loading, Lost, NotRecorded
from noria.services.executor.loaded import Loaded, report
from noria.services.executor.metrics import DeviceMetrics
from noria.services.executor.slots import IllegalPlanError, Slots
from noria.services.executor.spans import StepSpans
from noria.services.executor.step_log import step_time
from noria.services.executor.vigil import Vigil
from noria.shared.actor.shell import Shell
from noria.shared.process.garbage_collection import freeze_start_up_objects
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.step_timeline import STEPS_KEPT, StepTiming
from noria.shared.telemetry.telemetry import Telemetry

QUEUED_PLANS_MAX: Final = 8
HANG_S: Final = 15.0
"""How long a step may take whatever was predicted, unless it is said otherwise."""


class _Posted(NamedTuple):
    """A batch on the lane: the trace it is shown in, and with what it is linked there; links: None when it is not shown."""

    batch: Batch
    traceparent: str
    began_ns: int
    prepare_us: int
    links: tuple[str, ...] | None


class Post(Protocol):
    """What the shell needs of its actor."""

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        """Send to a peer."""

    def stop(self) -> None:
        """End the process's loop."""


class ExecutorShell:
    """One model replica. `make_lane` makes the lane that computes for it. hang_s: what a step may take in any case.

    failed: why the model could not be loaded. hung: a step does not end, and the process must. computing: whether the lane
    still works, after `close` too. lost_device: why the device cannot be used any more, and the process must end.
    step_times: of the last steps. metrics: what is counted.
    """

    def __init__(self, post: Post, telemetry: Telemetry, make_lane: Callable[[], Lane], hang_s: float = HANG_S) -> None:
        self.failed = ""
        self.lost_device = ""
        self.hung = False
        self.computing = True
        self._post = post
        self._spans = StepSpans(telemetry)
        self.metrics = DeviceMetrics()
        telemetry.add(self.metrics)
        self._loaded: Loaded | None = None
        self._slots: Slots | None = None
        self._plans: deque[tuple[StepPlan, str]] = deque()
        self._prepared: deque[_Posted] = deque()
        self._steps = 0
        self.step_times: deque[StepTiming] = deque(maxlen=STEPS_KEPT)
        # An inventory was announced to the scheduler and is not sent yet.
        self._owed = False
        self._vigil = Vigil(int(hang_s * 1e9))
        self._log = logger(Service.EXECUTOR.value)
        self._lane = make_lane()

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Queue a plan."""
        del sender
        assert isinstance(body, StepPlan)
        if self._slots is None:
            return  # planned for a predecessor: this life has told no geometry yet
        if body.number == 1:
            # Whatever is under way was given up; who waits no longer for an inventory gets none.
            self._owed = False
            self._plans.clear()
            self._prepared.clear()
        if len(self._plans) < QUEUED_PLANS_MAX:
            self._plans.append((body, header.traceparent))
        else:
            self._fail(body.epoch, body.number, Failure.INVALID, f"more than {QUEUED_PLANS_MAX} plans are waiting")

    def joined(self, peer: Service) -> None:
        """A new scheduler, or one that lost sight of us: say what this executor is, and that it holds something."""
        if peer is Service.SCHEDULER:
            self._plans.clear()
            self._owed = self._holds()
            if not self._owed:
                self._forget()
            self._tell_geometry()

    def lost(self, peer: Service) -> None:
        """Without a scheduler there is nobody to compute for; what is there is kept for the next one."""
        if peer is Service.SCHEDULER:
            self._plans.clear()
            self._owed = False

    def congested(self, peer: Service) -> None:
        """Results are as many as plans, which are bounded: a full outbox means the scheduler does not read."""
        self._log.warning("outbox full", peer=peer.value)
        if peer is Service.SCHEDULER:
            self._forget()

    def advance(self, now_ns: int) -> int | None:
        """Collect what the lane finished, then keep it fed; leave when a step does not end."""
        for outcome in self._lane.collect():
            match outcome:
                case Loaded():
                    self._begin(outcome)
                case Loading():
                    self._log.info("loading", what=outcome.what, done=outcome.done, of=outcome.of)
                case LoadFailed():
                    self.failed = outcome.reason
                    self._log.error("the model cannot be loaded", reason=outcome.reason)
                    self._post.stop()
                case Computed():
                    self._vigil.finished(now_ns)
                    self._done(outcome)
                case Broken():
                    self._vigil.finished(now_ns)
                    self._broken(outcome)
                case Lost():
                    self.lost_device = outcome.reason
                    self._log.error("the device is lost", reason=outcome.reason)
                    self._post.stop()
                case NotRecorded():
                    self.metrics.not_recorded()
                    self._log.warning("no graph", shape=outcome.shape, reason=outcome.reason)
                case _:
                    assert_never(outcome)
        if self._owed and not self._lane.held:
            self._tell_inventory()
        while self._plans and self._lane.held < LANE_BATCHES:
            self._compute(*self._plans.popleft(), now_ns)
        if self._vigil.over(now_ns):
            self._log.error("a step does not end", expected_ms=self._vigil.expected_us / 1000)
            self.hung = True
            self._post.stop()
        return self._vigil.due_ns

    def expected_us(self) -> int:
        """How long the step under way should take; 0 where nobody knows."""
        return self._vigil.expected_us

    def state(self) -> State:
        """STARTING until the model is loaded."""
        return State.READY if self._loaded else State.STARTING

    def progress(self) -> tuple[int, bool]:
        """Steps computed, and whether one is under way."""
        return self._steps, self._lane.held > 0 or self._loaded is None

    def snapshot(self) -> dict[str, Any]:
        """Slots filled and plans not yet answered, and what the executor is."""
        return {
            "slots": self._slots.used() if self._slots else 0,
            "queued_plans": len(self._plans) + self._lane.held,
            "steps": self._steps,
            "threads": self._loaded.threads if self._loaded else 0,
            "kernels": self._loaded.kernels if self._loaded else "",
            "memory": msgspec.to_builtins(self._loaded.memory) if self._loaded else None,
            "geometry": msgspec.to_builtins(self._loaded.geometry) if self._loaded else None,
        }

    def answer_steps(self, about: str) -> list[dict[str, Any]]:
        """The answer to a question for the times of recent steps: of the last `about`, or of all that are remembered."""
        last = int(about) if about.isdecimal() else STEPS_KEPT
        found: list[dict[str, Any]] = msgspec.to_builtins(list(self.step_times)[-last:] if last else [])
        return found

    def drain(self, timeout_ms: int) -> None:
        """Plans stop coming when the scheduler drains; there is nothing to refuse here."""

    def close(self) -> None:
        """Stop the lane."""
        self.computing = not self._lane.close()

    def _begin(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.metrics.loaded(loaded)
        self._slots = Slots(loaded.shape)
        report(loaded, self._log)
        freeze_start_up_objects()  # the model lives as long as the process, too
        self._tell_geometry()

    def _tell_geometry(self) -> None:
        if self._loaded is not None:
            geometry = msgspec.structs.replace(self._loaded.geometry, inventory=self._owed)
            self._post.send(self, Service.SCHEDULER, geometry)

    def _holds(self) -> bool:
        slots = self._slots
        return slots is not None and bool(slots.used() or len(slots.stashes) or len(slots.departures))

    def _tell_inventory(self) -> None:
        assert self._slots is not None
        self._owed = False
        self._slots.rest()
        self._post.send(self, Service.SCHEDULER, inventory(self._slots))

    def _forget(self) -> None:
        self._plans.clear()
        self._prepared.clear()
        if self._slots is not None:
            self._slots.clear()
            self._slots.stashes.clear()

    def _compute(self, plan: StepPlan, traceparent: str, now_ns: int) -> None:
        assert self._slots is not None
        if not self._slots.belongs(plan):
            return
        began_ns = time.monotonic_ns()
        try:
            batch = prepare(self._slots, plan)
        except IllegalPlanError as error:
            self._log.error("illegal plan", epoch=plan.epoch, number=plan.number, reason=str(error))
            self._fail(plan.epoch, plan.number, Failure.INVALID, str(error))
            return
        self._spans.follow(plan)
        prepare_us = (time.monotonic_ns() - began_ns) // 1000
        self._prepared.append(_Posted(batch, traceparent, began_ns, prepare_us, self._spans.links(plan, traceparent)))
        self._vigil.posted(plan.predicted_us, now_ns)
        self._lane.post(batch)

    def _done(self, computed: Computed) -> None:
        self._steps += 1
        batch = computed.batch
        posted = self._of(batch)
        if posted is None or self._slots is None or not self._current(batch):
            return
        self.step_times.append(step_time(batch, posted.began_ns, computed.times))
        sampled = results(self._slots, batch, computed.drawn)
        tokens = len(batch.token_ids)
        self.metrics.step(tokens, computed, posted.prepare_us)
        if self._owed:
            return  # of a scheduler that is gone: the next one is told by the inventory
        done = StepDone(batch.epoch, batch.number, sampled, computed.compute_us, posted.prepare_us, computed.idle_us)
        self._post.send(self, Service.SCHEDULER, done, posted.traceparent)
        if posted.links is not None:
            self._spans.done(batch.number, tokens, computed.compute_us, posted.traceparent, posted.links)

    def _broken(self, broken: Broken) -> None:
        batch = broken.batch
        if self._of(batch) is not None and self._current(batch):
            self._log.error("step failed", epoch=batch.epoch, number=batch.number, reason=broken.detail)
            if self._owed:
                self._forget()  # what the step left behind is unknown, and nobody waits for its result
            else:
                self._fail(batch.epoch, batch.number, broken.failure, broken.detail)

    def _of(self, batch: Batch) -> _Posted | None:
        """What was noted when a batch was posted; None when everything has been forgotten since."""
        if self._prepared and self._prepared[0].batch is batch:
            return self._prepared.popleft()
        return None

    def _current(self, batch: Batch) -> bool:
        return self._slots is not None and self._slots.alive and batch.epoch == self._slots.epoch

    def _fail(self, epoch: int, number: int, failure: Failure, detail: str) -> None:
        """Tell it once; what is left of the epoch is discarded unanswered. The next epoch's plans may wait already."""
        following = [each for each in self._plans if each[0].epoch != epoch]
        self._forget()
        self._plans.extend(following)
        self._post.send(self, Service.SCHEDULER, StepFailed(epoch, number, failure, detail))
