"""Scheduler core and executor in this process, without sockets, text or other services: what the stack around them costs.

Plans are made and obeyed by the same code as when serving, with as many steps in flight; requests come as the load says.
This is the one place where two services' parts meet in one process.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from noria.cli.bench.arrivals import Closed, Load, moments
from noria.cli.bench.load_driver import Driven
from noria.cli.bench.request_timeline import Observed
from noria.cli.bench.workload import Job
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
class _Post:
    """Stands for the executor's actor: keeps what it sends."""

    bodies: deque[msgspec.Struct] = field(default_factory=deque)

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        del shell, peer, traceparent
        self.bodies.append(body)
        return True

    def stop(self) -> None:
        """The shell asks for it when its model cannot be loaded."""


class Offline:
    """A loaded model and a scheduler, for any number of runs. `model` is its name."""

    def __init__(self, config: Config) -> None:
        settings = executor_config(config)
        threads = str(settings.threads or cores())
        os.environ.setdefault("OMP_NUM_THREADS", threads)  # read when torch is first imported
        os.environ.setdefault("MKL_NUM_THREADS", threads)
        self.model = served_names(config.model)[0]
        self._tokenizer = Tokenizer.load(resolve_model_folder(config.model))
        self._settings: CoreSettings = scheduler_settings(config)
        self._machine = _Machine(settings)

    def run(
        self,
        jobs: Sequence[Job],
        load: Load,
        *,
        temperature: float,
        tell: Callable[[int], None] = lambda ended: None,
    ) -> Driven:
        """Run all jobs to their ends. Raises UserError when a step fails."""
        prompts = [tuple(self._tokenizer.encode(job.prompt)) for job in jobs]
        return _Run(self._settings, self._machine, jobs, prompts, load, temperature, tell).run()

    def close(self) -> None:
        """Stop the executor's lane."""
        self._machine.close()


class _Machine:
    """An executor's shell with nobody around it. Raises UserError when the model cannot be loaded."""

    def __init__(self, settings: ExecutorConfig) -> None:
        from noria.services.executor.make_runner import make_runner
        from noria.services.executor.service import ExecutorShell

        self.post = _Post()
        self._woken = threading.Event()
        telemetry = Telemetry(Service.EXECUTOR, 0, TelemetrySettings())
        self._shell = ExecutorShell(self.post, telemetry, lambda: make_runner(settings, self._woken.set))
        while not self.post.bodies:
            self.wait(None)
            self._shell.advance(time.monotonic_ns())
            if self._shell.failed:
                raise UserError(self._shell.failed)
        geometry = self.post.bodies.popleft()
        assert isinstance(geometry, Geometry)
        self.geometry = geometry

    def begin(self) -> None:
        """A new scheduler joins: what an earlier one planned is forgotten."""
        self._shell.joined(Service.SCHEDULER)
        self.post.bodies.clear()

    def wait(self, timeout_s: float | None) -> None:
        """Until the lane has news."""
        self._woken.wait(timeout_s)
        self._woken.clear()

    def advance(self, plan: msgspec.Struct | None = None) -> None:
        """Give it a plan, or let it go on."""
        if plan is not None:
            self._shell.receive(Service.SCHEDULER, _NOBODY, plan)
        self._shell.advance(time.monotonic_ns())

    def close(self) -> None:
        """Stop the lane."""
        self._shell.close()


class _Run:
    """One run; times as everywhere in seconds of the performance counter."""

    def __init__(
        self,
        settings: CoreSettings,
        machine: _Machine,
        jobs: Sequence[Job],
        prompts: Sequence[tuple[int, ...]],
        load: Load,
        temperature: float,
        tell: Callable[[int], None],
    ) -> None:
        self._core = Scheduler(settings)
        self._machine = machine
        self._jobs = jobs
        self._prompts = prompts
        self._in_flight = load.in_flight if isinstance(load, Closed) else len(jobs)
        self._due = [0.0] * len(jobs) if isinstance(load, Closed) else moments(load, jobs)
        self._closed = isinstance(load, Closed)
        self._temperature = temperature
        self._tell = tell
        self._observed = tuple(Observed(job.index, job.output_tokens) for job in jobs)
        self._submitted = self._ended = 0

    def run(self) -> Driven:
        """Submit, plan and compute until all have ended."""
        self._machine.begin()
        self._apply(self._machine.geometry)
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        while self._ended < len(self._jobs):
            next_s = self._submit(time.perf_counter() - began_s, began_s)
            while (plan := self._core.plan(time.monotonic_ns())) is not None:
                self._machine.advance(plan)
            self._machine.wait(self._until(next_s))
            self._machine.advance()
            self._collect()
        busy = (time.thread_time() - cpu_s) / max(1e-9, time.perf_counter() - began_s)
        return Driven(self._observed, busy)

    def _until(self, next_s: float | None) -> float | None:
        """How long to wait at most: for the next request, and for the next plan, which may be due before anything happens."""
        due_ns = self._core.due_ns
        if due_ns is None:
            return next_s
        due_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        return due_s if next_s is None else min(due_s, next_s)

    def _submit(self, now_s: float, began_s: float) -> float | None:
        """Submit what is due; returns how long until the next is, or None when an end must come first."""
        while self._submitted < len(self._jobs) and self._submitted - self._ended < self._in_flight:
            number = self._submitted
            if self._due[number] > now_s:
                return self._due[number] - now_s
            observed, prompt = self._observed[number], self._prompts[number]
            observed.begun_s = began_s + (now_s if self._closed else self._due[number])
            observed.slip_s = 0.0 if self._closed else now_s - self._due[number]
            observed.prompt_tokens = len(prompt)
            sampling = Sampling(
                temperature=self._temperature, seed=number, max_tokens=self._jobs[number].output_tokens, ignore_eos=True
            )
            self._submitted += 1
            self._apply(Submit((Submission(Stream(number, 0), 0, prompt, sampling),)))
        return None

    def _collect(self) -> None:
        while self._machine.post.bodies:
            body = self._machine.post.bodies.popleft()
            if isinstance(body, StepFailed):
                raise UserError(f"step {body.number} failed: {body.detail}")
            if isinstance(body, StepDone):
                self._apply(body)

    def _apply(self, body: Geometry | Submit | StepDone | Ended) -> None:
        ended: list[Stream] = []
        for reply in self._core.apply(SchedulerEvent(time.monotonic_ns(), body)):
            if not isinstance(reply, TokenRun):
                continue
            observed = self._observed[reply.stream.request]
            now_s = time.perf_counter()
            if reply.ids:
                observed.arrivals.append(now_s)
                observed.counted_tokens = (observed.counted_tokens or 0) + len(reply.ids)
            if reply.end:
                observed.ended_s = now_s
                observed.cached_tokens = reply.cached_tokens
                observed.finish = "length"
                ended.append(reply.stream)
        if ended:
            self._ended += len(ended)
            self._tell(self._ended)
            self._apply(Ended(tuple(ended)))
