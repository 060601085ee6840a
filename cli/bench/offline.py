"""Runs the scheduler's core and the executor in this process, without sockets, text or other services.

The difference to a served run is what the stack around them costs. The same code plans and computes as when serving, with as
many steps in flight; requests come in the given load pattern. Only here do parts of two services meet in one process.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from noria.cli.bench.arrivals import ClosedLoop, LoadPattern, send_times
from noria.cli.bench.load_driver import LoadResult
from noria.cli.bench.request_timeline import BenchTimeline
from noria.cli.bench.workload import BenchRequest
from noria.proto.base import Ended, Header, Service, Stream
from noria.proto.execution import Geometry, StepDone, StepFailed
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.executor.config import ExecutorConfig, executor_config
from noria.services.executor.runner.machine import cores
from noria.services.scheduler.config import scheduler_settings
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler
from noria.shared.actor.shell import Shell
from noria.shared.config.config import Config, TelemetrySettings
from noria.shared.errors import UserError
from noria.shared.model.model_folder import resolve_model_folder, served_names
from noria.shared.model.tokenizer import Tokenizer
from noria.shared.telemetry.telemetry import Telemetry

_NOBODY: Final = Header("", "", 0)


@dataclass(slots=True, eq=False)
class _Outbox:
    """Stands in for the executor's actor: keeps the messages that it sends."""

    bodies: deque[msgspec.Struct] = field(default_factory=deque)

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        del shell, peer, traceparent
        self.bodies.append(body)
        return True

    def stop(self) -> None:
        """Do nothing: the shell calls it when its model cannot be loaded, which shows in `failed`."""


class OfflineEngine:
    """A loaded model and the scheduler's settings, for any number of runs. `model` is the model's name."""

    def __init__(self, config: Config) -> None:
        settings = executor_config(config)
        threads = str(settings.threads or cores())
        os.environ.setdefault("OMP_NUM_THREADS", threads)  # read when torch is first imported
        os.environ.setdefault("MKL_NUM_THREADS", threads)
        self.model = served_names(config.model)[0]
        self._tokenizer = Tokenizer.load(resolve_model_folder(config.model))
        self._settings: CoreSettings = scheduler_settings(config)
        self._executor = _LocalExecutor(settings)

    def run(
        self,
        requests: Sequence[BenchRequest],
        load: LoadPattern,
        *,
        temperature: float,
        on_ended: Callable[[int], None] = lambda ended: None,
    ) -> LoadResult:
        """Run all requests to their ends. Raises UserError when a step fails."""
        prompts = [tuple(self._tokenizer.encode(request.prompt)) for request in requests]
        return _OfflineRun(self._settings, self._executor, requests, prompts, load, temperature, on_ended).run()

    def close(self) -> None:
        """Stop the executor's thread."""
        self._executor.close()


class _LocalExecutor:
    """An executor's shell without an actor around it. Raises UserError when the model cannot be loaded."""

    def __init__(self, settings: ExecutorConfig) -> None:
        from noria.services.executor.make_runner import make_runner
        from noria.services.executor.service import ExecutorShell

        self.outbox = _Outbox()
        self._wakeup = threading.Event()
        telemetry = Telemetry(Service.EXECUTOR, 0, TelemetrySettings())
        self._shell = ExecutorShell(self.outbox, telemetry, lambda: make_runner(settings, self._wakeup.set))
        while not self.outbox.bodies:
            self.wait(None)
            self._shell.advance(time.monotonic_ns())
            if self._shell.failed:
                raise UserError(self._shell.failed)
        geometry = self.outbox.bodies.popleft()
        assert isinstance(geometry, Geometry)
        self.geometry = geometry

    def reset(self) -> None:
        """Let a new scheduler join: what an earlier one planned is forgotten."""
        self._shell.joined(Service.SCHEDULER)
        self.outbox.bodies.clear()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until the executor's thread has a result."""
        self._wakeup.wait(timeout_s)
        self._wakeup.clear()

    def advance(self, plan: msgspec.Struct | None = None) -> None:
        """Send the executor a plan, if there is one, and let it handle results."""
        if plan is not None:
            self._shell.receive(Service.SCHEDULER, _NOBODY, plan)
        self._shell.advance(time.monotonic_ns())

    def close(self) -> None:
        """Stop the executor's thread."""
        self._shell.close()


class _OfflineRun:
    """One run over a workload. Times are seconds of the performance counter."""

    def __init__(
        self,
        settings: CoreSettings,
        executor: _LocalExecutor,
        requests: Sequence[BenchRequest],
        prompts: Sequence[tuple[int, ...]],
        load: LoadPattern,
        temperature: float,
        on_ended: Callable[[int], None],
    ) -> None:
        self._core = Scheduler(settings)
        self._executor = executor
        self._requests = requests
        self._prompts = prompts
        self._in_flight = load.in_flight if isinstance(load, ClosedLoop) else len(requests)
        self._due = [0.0] * len(requests) if isinstance(load, ClosedLoop) else send_times(load, requests)
        self._closed = isinstance(load, ClosedLoop)
        self._temperature = temperature
        self._on_ended = on_ended
        self._timelines = tuple(BenchTimeline(request.index, request.output_tokens) for request in requests)
        self._submitted = self._ended = 0

    def run(self) -> LoadResult:
        """Submit, plan and compute until all requests have ended."""
        self._executor.reset()
        self._handle(self._executor.geometry)
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        while self._ended < len(self._requests):
            next_s = self._submit(time.perf_counter() - began_s, began_s)
            while (plan := self._core.plan(time.monotonic_ns())) is not None:
                self._executor.advance(plan)
            self._executor.wait(self._until(next_s))
            self._executor.advance()
            self._collect()
        busy = (time.thread_time() - cpu_s) / max(1e-9, time.perf_counter() - began_s)
        return LoadResult(self._timelines, busy)

    def _until(self, next_s: float | None) -> float | None:
        """Return the longest time to wait: until the next request or the next plan, which may be due before anything happens."""
        due_ns = self._core.due_ns
        if due_ns is None:
            return next_s
        due_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        return due_s if next_s is None else min(due_s, next_s)

    def _submit(self, now_s: float, began_s: float) -> float | None:
        """Submit requests that are due; returns the seconds until the next one, or None when another must end first."""
        while self._submitted < len(self._requests) and self._submitted - self._ended < self._in_flight:
            number = self._submitted
            if self._due[number] > now_s:
                return self._due[number] - now_s
            timeline, prompt = self._timelines[number], self._prompts[number]
            timeline.begun_s = began_s + (now_s if self._closed else self._due[number])
            timeline.slip_s = 0.0 if self._closed else now_s - self._due[number]
            timeline.prompt_tokens = len(prompt)
            sampling = Sampling(
                temperature=self._temperature,
                seed=number,
                max_tokens=self._requests[number].output_tokens,
                ignore_eos=True,
            )
            self._submitted += 1
            self._handle(Submit((Submission(Stream(number, 0), 0, prompt, sampling),)))
        return None

    def _collect(self) -> None:
        while self._executor.outbox.bodies:
            body = self._executor.outbox.bodies.popleft()
            if isinstance(body, StepFailed):
                raise UserError(f"step {body.number} failed: {body.detail}")
            if isinstance(body, StepDone):
                self._handle(body)

    def _handle(self, body: Geometry | Submit | StepDone | Ended) -> None:
        ended: list[Stream] = []
        for reply in self._core.apply(SchedulerEvent(time.monotonic_ns(), body)):
            if not isinstance(reply, TokenRun):
                continue
            timeline = self._timelines[reply.stream.request]
            now_s = time.perf_counter()
            if reply.ids:
                timeline.arrivals.append(now_s)
                timeline.counted_tokens = (timeline.counted_tokens or 0) + len(reply.ids)
            if reply.end:
                timeline.ended_s = now_s
                timeline.cached_tokens = reply.cached_tokens
                timeline.finish = "length"
                ended.append(reply.stream)
        if ended:
            self._ended += len(ended)
            self._on_ended(self._ended)
            self._handle(Ended(tuple(ended)))
