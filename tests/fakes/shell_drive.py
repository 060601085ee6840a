"""The scheduler's core and the executor's shell in one process, without sockets, over a model runner that works in threads."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from noria.proto.base import Ended, Header, Service, Stream
from noria.proto.execution import Geometry, StepDone, StepFailed
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.executor.runner.model_runner import ModelRunner
from noria.services.executor.service import ExecutorShell
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler
from noria.shared.actor.shell import Shell
from noria.shared.config.config import TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

PATIENCE_S = 60.0


@dataclass(eq=False)
class ShellDrive:
    """make_runner: is given what wakes the shell. Ends in an error when nothing comes for PATIENCE_S."""

    make_runner: Callable[[Callable[[], None]], ModelRunner]
    settings: CoreSettings
    bodies: deque[msgspec.Struct] = field(default_factory=deque)
    failures: list[StepFailed] = field(default_factory=list)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.woken = threading.Event()
        telemetry = Telemetry(Service.EXECUTOR, 0, TelemetrySettings())
        self.shell = ExecutorShell(self, telemetry, lambda: self.make_runner(self.woken.set))

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        self.bodies.append(body)
        return True

    def stop(self) -> None:
        self.stopped = True

    def load(self) -> Geometry:
        """Wait for the model."""
        while not self.bodies and not self.stopped:
            self._turn()
        assert not self.stopped, self.shell.failed
        geometry = self.bodies.popleft()
        assert isinstance(geometry, Geometry)
        return geometry

    def run(self, geometry: Geometry, asked: list[tuple[tuple[int, ...], Sampling]]) -> list[list[int]]:
        """Run requests to their ends, or until the shell stops."""
        self.core = Scheduler(self.settings)
        self.answers: dict[int, list[int]] = {number: [] for number in range(len(asked))}
        self.open = set(self.answers)
        self._apply(geometry)
        for number, (prompt, sampling) in enumerate(asked):
            self._apply(Submit((Submission(Stream(number, 0), 0, prompt, sampling, ()),)))
        while self.open and not self.stopped:
            while (plan := self.core.plan(time.monotonic_ns())) is not None:
                self.shell.receive(Service.SCHEDULER, Header("", "", 0), plan)
                self.shell.advance(time.monotonic_ns())
            self._turn(self.core.due_ns)
            while self.bodies:
                body = self.bodies.popleft()
                if isinstance(body, StepFailed):
                    self.failures.append(body)
                if isinstance(body, StepDone | StepFailed):
                    self._apply(body)
        return list(self.answers.values())

    def close(self) -> None:
        self.shell.close()

    def _turn(self, due_ns: int | None = None) -> None:
        """Wait for the model runner, or until the next plan is due."""
        if due_ns is None:
            assert self.woken.wait(PATIENCE_S), "nothing comes from the model runner"
        else:
            self.woken.wait(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
        self.woken.clear()
        self.shell.advance(time.monotonic_ns())

    def _apply(self, body: Geometry | Submit | StepDone | StepFailed | Ended) -> None:
        for reply in self.core.apply(SchedulerEvent(time.monotonic_ns(), body)):
            if isinstance(reply, TokenRun):
                self.answers[reply.stream.request].extend(reply.ids)
                if reply.end:
                    self.open.discard(reply.stream.request)
                    self._apply(Ended((reply.stream,)))
