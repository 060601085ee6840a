"""The executor process: receives plans, has the model runner compute them, and sends the results.

It loads the model on the model runner while it already answers greetings and inspection, and prepares plans while the model runner
computes. What it holds outlives the scheduler: to the next one it tells that, as soon as no step is under way.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, assert_never

import msgspec

from noria.proto.base import Header, Service
from noria.proto.execution import StepDone, StepFailed, StepPlan
from noria.proto.lifecycle import State
from noria.services.executor.metrics import DeviceMetrics
from noria.services.executor.plan.plan_queue import PlanQueue
from noria.services.executor.plan.step_deadline import StepDeadline
from noria.services.executor.runner.loaded_model import LoadedModel, log_loaded_model
from noria.services.executor.runner.model_runner import (
    BATCHES_IN_FLIGHT_MAX,
    DeviceLost,
    GraphNotRecorded,
    LoadFailed,
    LoadProgress,
    ModelRunner,
    StepBroken,
    StepComputed,
)
from noria.services.executor.step_spans import StepSpans
from noria.shared.actor.shell import Shell
from noria.shared.process.garbage_collection import freeze_start_up_objects
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.step_timeline import STEPS_KEPT, StepTiming
from noria.shared.telemetry.telemetry import Telemetry

HANG_S: Final = 15.0
"""How long a step may take whatever was predicted, unless it is said otherwise."""


class _PostedStep(NamedTuple):
    """What the shell notes of a batch that it gave to the model runner.

    traceparent: the trace it is shown in; links: with what it is linked there, None when it is not shown.
    """

    traceparent: str
    began_ns: int
    prepare_us: int
    links: tuple[str, ...] | None


class ActorPort(Protocol):
    """What the shell needs of the actor that runs it."""

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        """Send a message to a peer; False when its outbox is full."""

    def stop(self) -> None:
        """End the process's loop."""


class ExecutorShell:
    """One model replica. `make_runner` makes the model runner that computes for it. hang_s: what a step may take in any case.

    failed: why the model could not be loaded. hung: a step does not end, and the process must. computing: whether the model runner
    still works, after `close` too. lost_device: why the device cannot be used any more, and the process must end.
    step_times: of the last steps. metrics: what is counted.
    """

    def __init__(
        self, post: ActorPort, telemetry: Telemetry, make_runner: Callable[[], ModelRunner], hang_s: float = HANG_S
    ) -> None:
        self.failed = ""
        self.lost_device = ""
        self.hung = False
        self.computing = True
        self._post = post
        self._spans = StepSpans(telemetry)
        self.metrics = DeviceMetrics()
        telemetry.add(self.metrics)
        self._loaded: LoadedModel | None = None
        self._queue: PlanQueue[_PostedStep] = PlanQueue()
        self._steps = 0
        self.step_times: deque[StepTiming] = deque(maxlen=STEPS_KEPT)
        self._deadline = StepDeadline(int(hang_s * 1e9))
        self._log = logger(Service.EXECUTOR.value)
        self._runner = make_runner()

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Queue a plan."""
        del sender
        assert isinstance(body, StepPlan)
        failed = self._queue.add(body, header.traceparent)
        if failed is not None:
            self._post.send(self, Service.SCHEDULER, failed)

    def joined(self, peer: Service) -> None:
        """Send the geometry to a scheduler that connected, and whether an inventory of what is still held follows."""
        if peer is Service.SCHEDULER:
            self._queue.scheduler_joined()
            self._send_geometry()

    def lost(self, peer: Service) -> None:
        """Drop the plans of a scheduler that is gone; slots and cache are kept for the next one."""
        if peer is Service.SCHEDULER:
            self._queue.scheduler_lost()

    def congested(self, peer: Service) -> None:
        """End the epoch when the scheduler does not read: results are no more than plans, so its outbox is never full otherwise."""
        self._log.warning("outbox full", peer=peer.value)
        if peer is Service.SCHEDULER:
            self._queue.forget()

    def advance(self, now_ns: int) -> int | None:
        """Collect what the model runner finished, then keep it fed; leave when a step does not end."""
        for outcome in self._runner.collect():
            match outcome:
                case LoadedModel():
                    self._begin(outcome)
                case LoadProgress():
                    self._log.info("loading", what=outcome.what, done=outcome.done, of=outcome.of)
                case LoadFailed():
                    self.failed = outcome.reason
                    self._log.error("the model cannot be loaded", reason=outcome.reason)
                    self._post.stop()
                case StepComputed():
                    self._deadline.finished(now_ns)
                    self._done(outcome)
                case StepBroken():
                    self._deadline.finished(now_ns)
                    self._broken(outcome)
                case DeviceLost():
                    self.lost_device = outcome.reason
                    self._log.error("the device is lost", reason=outcome.reason)
                    self._post.stop()
                case GraphNotRecorded():
                    self.metrics.not_recorded()
                    self._log.warning("no graph", shape=outcome.shape, reason=outcome.reason)
                case _:
                    assert_never(outcome)
        if not self._runner.held and (inventory := self._queue.take_inventory()) is not None:
            self._post.send(self, Service.SCHEDULER, inventory)
        while self._runner.held < BATCHES_IN_FLIGHT_MAX and (queued := self._queue.next()) is not None:
            self._compute(*queued, now_ns)
        if self._deadline.over(now_ns):
            self._log.error("a step does not end", expected_ms=self._deadline.expected_us / 1000)
            self.hung = True
            self._post.stop()
        return self._deadline.due_ns

    def expected_us(self) -> int:
        """Predicted microseconds of the step under way; 0 when there is none, or no prediction."""
        return self._deadline.expected_us

    def state(self) -> State:
        """READY once the model is loaded, STARTING before."""
        return State.READY if self._loaded else State.STARTING

    def progress(self) -> tuple[int, bool]:
        """How many steps were computed, and whether one is under way."""
        return self._steps, self._runner.held > 0 or self._loaded is None

    def snapshot(self) -> dict[str, Any]:
        """What /debug/state shows of the executor: slots in use, plans not yet answered, memory and geometry."""
        return {
            "slots": self._queue.slots_used,
            "queued_plans": len(self._queue) + self._runner.held,
            "steps": self._steps,
            "threads": self._loaded.threads if self._loaded else 0,
            "kernels": self._loaded.kernels if self._loaded else "",
            "memory": msgspec.to_builtins(self._loaded.memory) if self._loaded else None,
            "geometry": msgspec.to_builtins(self._loaded.geometry) if self._loaded else None,
        }

    def answer_steps(self, about: str) -> list[dict[str, Any]]:
        """Times of the last `about` steps as built-in types; of all that are kept when `about` is not a number."""
        last = int(about) if about.isdecimal() else STEPS_KEPT
        found: list[dict[str, Any]] = msgspec.to_builtins(list(self.step_times)[-last:] if last else [])
        return found

    def drain(self, timeout_ms: int) -> None:
        """Do nothing: the scheduler stops sending plans when it drains."""

    def close(self) -> None:
        """Stop the model runner."""
        self.computing = not self._runner.close()

    def _begin(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.metrics.loaded(loaded)
        self._queue.open(loaded.shape)
        log_loaded_model(loaded, self._log)
        freeze_start_up_objects()  # the model lives as long as the process, too
        self._send_geometry()

    def _send_geometry(self) -> None:
        if self._loaded is not None:
            geometry = msgspec.structs.replace(self._loaded.geometry, inventory=self._queue.inventory_due)
            self._post.send(self, Service.SCHEDULER, geometry)

    def _compute(self, plan: StepPlan, traceparent: str, now_ns: int) -> None:
        began_ns = time.monotonic_ns()
        batch = self._queue.prepare(plan)
        if isinstance(batch, StepFailed):
            self._log.error("illegal plan", epoch=plan.epoch, number=plan.number, reason=batch.detail)
            self._post.send(self, Service.SCHEDULER, batch)
            return
        self._spans.follow(plan)
        prepare_us = (time.monotonic_ns() - began_ns) // 1000
        self._queue.post(batch, _PostedStep(traceparent, began_ns, prepare_us, self._spans.links(plan, traceparent)))
        self._deadline.posted(plan.predicted_us, now_ns)
        self._runner.post(batch)

    def _done(self, computed: StepComputed) -> None:
        self._steps += 1
        batch = computed.batch
        finished = self._queue.finish(batch, computed.drawn)
        if finished is None:
            return
        posted, tokens = finished.note, len(batch.token_ids)
        self.step_times.append(computed.times.step_time(batch, posted.began_ns))
        self.metrics.step(tokens, computed, posted.prepare_us)
        if not finished.wanted:
            return
        done = StepDone(
            batch.epoch, batch.number, finished.sampled, computed.compute_us, posted.prepare_us, computed.idle_us
        )
        self._post.send(self, Service.SCHEDULER, done, posted.traceparent)
        if posted.links is not None:
            self._spans.done(batch.number, tokens, computed.compute_us, posted.traceparent, posted.links)

    def _broken(self, broken: StepBroken) -> None:
        batch = broken.batch
        if self._queue.failed(batch):
            self._log.error("step failed", epoch=batch.epoch, number=batch.number, reason=broken.detail)
            unwanted = self._queue.inventory_due
            failed = self._queue.fail(batch.epoch, batch.number, broken.failure, broken.detail)
            if not unwanted:
                self._post.send(self, Service.SCHEDULER, failed)
