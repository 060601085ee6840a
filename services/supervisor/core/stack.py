"""The life of a stack's children: who is in which phase, whom to start, stop or kill next, and how it all ends.

Events go in, replies come out; the shell spawns and signals. Knows nothing of processes, sockets or clocks: time is a
field of events. An event that cannot happen in the present phase raises `IllegalEvent` and changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, assert_never

from noria.proto.base import Service
from noria.services.supervisor.core.events import (
    Begun,
    Event,
    Exited,
    Kill,
    Over,
    Reply,
    Reported,
    Served,
    Spawn,
    Spawned,
    StopAsked,
    Terminate,
    Ticked,
)

START_ORDER: Final = (
    Service.EXECUTOR,  # loads the longest
    Service.SCHEDULER,
    Service.DETOKENIZER,
    Service.ADMISSION,
    Service.GATEWAY,
)
STOP_ORDER: Final = (
    Service.GATEWAY,
    Service.ADMISSION,
    Service.SCHEDULER,
    Service.EXECUTOR,
    Service.DETOKENIZER,
)
EXIT_ORDERLY: Final = 0
EXIT_FAILED: Final = 1
EXIT_USER_ERROR: Final = 2
_SIGTERM: Final = 15
_SIGKILL: Final = 9
_SIGNAL_NAMES: Final[Mapping[int, str]] = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


class Phase(StrEnum):
    """Where a child is in its life."""

    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    EXITED = "exited"


class Course(IntEnum):
    """Where the whole stack is: it only ever moves forward."""

    IDLE = 0
    STARTING = 1
    SERVING = 2
    STOPPING = 3
    OVER = 4


class IllegalEvent(Exception):  # noqa: N818 - named after what it is, like the events
    """An event that cannot happen in the present phase: a bug of the shell."""


@dataclass(slots=True, eq=False)
class Child:
    """One service as the supervisor sees it. `deadline_ns`: when it is killed while stopping."""

    service: Service
    phase: Phase = Phase.ABSENT
    pid: int = 0
    spawned_ns: int = 0
    deadline_ns: int | None = None
    killed: bool = False


class Stack:
    """All children of one supervisor.

    start_timeout_ns bounds the time until all are ready, stop_timeout_ns how long one child may take to stop.
    """

    def __init__(self, start_timeout_ns: int, stop_timeout_ns: int) -> None:
        self.children = {service: Child(service) for service in START_ORDER}
        self.course = Course.IDLE
        self._start_timeout_ns = start_timeout_ns
        self._stop_timeout_ns = stop_timeout_ns
        self._begun_ns = 0
        self._exit_status = EXIT_ORDERLY
        self._cause = ""

    def apply(self, event: Event) -> list[Reply]:
        """Take one event and say what to do now. Raises IllegalEvent."""
        match event:
            case Begun():
                return self._begin(event)
            case Spawned():
                return self._spawned(event)
            case Reported():
                return self._reported(event)
            case Exited():
                return self._exited(event)
            case StopAsked():
                return self._stop_asked(event)
            case Ticked():
                return self._ticked(event)
            case _ as never:
                assert_never(never)

    def wanted_ns(self) -> int | None:
        """When the next `Ticked` is due, or None when nothing waits for time to pass."""
        if self.course is Course.STARTING:
            return self._begun_ns + self._start_timeout_ns
        deadlines = [child.deadline_ns for child in self.children.values() if child.deadline_ns is not None]
        return min(deadlines, default=None)

    def check(self) -> None:
        """State the invariants; raises AssertionError when one does not hold."""
        phases = [child.phase for child in self.children.values()]
        if self.course is Course.SERVING:
            assert all(phase is Phase.READY for phase in phases)
        if self.course is Course.IDLE:
            assert all(phase is Phase.ABSENT for phase in phases)
        if self.course is Course.OVER:
            assert not any(self._alive())
        if self.course < Course.STOPPING:
            assert not self._cause
            assert Phase.STOPPING not in phases
        for child in self.children.values():
            assert (child.deadline_ns is not None) == (child.phase is Phase.STOPPING and not child.killed)
            assert child.pid > 0 or child.phase is Phase.ABSENT

    def _begin(self, event: Begun) -> list[Reply]:
        self._require(self.course is Course.IDLE, event)
        self.course = Course.STARTING
        self._begun_ns = event.now_ns
        return [Spawn(service) for service in START_ORDER]

    def _spawned(self, event: Spawned) -> list[Reply]:
        child = self.children[event.service]
        self._require(child.phase is Phase.ABSENT and self.course is Course.STARTING, event)
        child.phase, child.pid, child.spawned_ns = Phase.STARTING, event.pid, event.now_ns
        return []

    def _reported(self, event: Reported) -> list[Reply]:
        child = self.children[event.service]
        self._require(child.phase not in (Phase.ABSENT, Phase.EXITED), event)
        if self.course is not Course.STARTING:
            # Readiness may come and go while serving (a peer restarts); phases only say that the start succeeded.
            return []
        child.phase = Phase.READY if event.ready else Phase.STARTING
        if any(each.phase is not Phase.READY for each in self.children.values()):
            return []
        self.course = Course.SERVING
        return [Served((event.now_ns - self._begun_ns) // 1_000_000)]

    def _exited(self, event: Exited) -> list[Reply]:
        child = self.children[event.service]
        self._require(child.phase not in (Phase.ABSENT, Phase.EXITED), event)
        was, child.phase, child.deadline_ns = child.phase, Phase.EXITED, None
        if self.course is not Course.STOPPING:
            mistaken = was is Phase.STARTING and event.status == EXIT_USER_ERROR
            self._fail(
                f"{event.service.value} could not start, it says why above"
                if mistaken
                else f"{event.service.value} {describe_exit(event.status)}; its last log lines are above",
                EXIT_USER_ERROR if mistaken else EXIT_FAILED,
            )
        elif not child.killed and event.status not in (0, -_SIGTERM):
            self._fail(f"{event.service.value} {describe_exit(event.status)} while the stack was stopping", EXIT_FAILED)
        return self._stop_next(event.now_ns)

    def _stop_asked(self, event: StopAsked) -> list[Reply]:
        if self.course is Course.OVER:
            return []
        if self.course is not Course.STOPPING:
            return self._stop_next(event.now_ns)
        self._fail("killed at the second signal", EXIT_FAILED)
        return [self._kill(child, overdue=False) for child in self._alive() if not child.killed]

    def _ticked(self, event: Ticked) -> list[Reply]:
        if self.course is Course.STARTING and event.now_ns >= self._begun_ns + self._start_timeout_ns:
            late = ", ".join(child.service.value for child in self._alive() if child.phase is not Phase.READY)
            seconds = self._start_timeout_ns / 1e9
            self._fail(
                f"not ready within {seconds:g} s: {late}; see the log above, or raise runtime.start_timeout_s",
                EXIT_FAILED,
            )
            return self._stop_next(event.now_ns)
        replies: list[Reply] = []
        for child in self._alive():
            if child.deadline_ns is not None and event.now_ns >= child.deadline_ns:
                seconds = self._stop_timeout_ns / 1e9
                self._fail(f"{child.service.value} did not stop within {seconds:g} s and was killed", EXIT_FAILED)
                replies.append(self._kill(child, overdue=True))
        return replies

    def _stop_next(self, now_ns: int) -> list[Reply]:
        """One child after the other, so that each can still hand its last messages to the next."""
        self.course = Course.STOPPING
        if any(child.phase is Phase.STOPPING for child in self._alive()):
            return []
        for service in STOP_ORDER:
            child = self.children[service]
            if child.phase in (Phase.STARTING, Phase.READY):
                child.phase = Phase.STOPPING
                child.deadline_ns = now_ns + self._stop_timeout_ns
                return [Terminate(service)]
        self.course = Course.OVER
        return [Over(self._exit_status, self._cause)]

    def _kill(self, child: Child, *, overdue: bool) -> Kill:
        child.phase, child.killed, child.deadline_ns = Phase.STOPPING, True, None
        return Kill(child.service, overdue)

    def _fail(self, cause: str, exit_status: int) -> None:
        """The first cause is the one that counts: what follows it is its consequence."""
        if not self._cause:
            self._cause, self._exit_status = cause, exit_status

    def _alive(self) -> list[Child]:
        return [child for child in self.children.values() if child.phase not in (Phase.ABSENT, Phase.EXITED)]

    def _require(self, legal: bool, event: Event) -> None:
        if not legal:
            raise IllegalEvent(f"{event!r} while {self.course.name}")


def describe_exit(status: int) -> str:
    """Say how a process ended: `status` is its exit status, or minus the signal's number."""
    if status >= 0:
        return f"ended unexpectedly with exit status {status}"
    name = _SIGNAL_NAMES.get(-status, f"signal {-status}")
    hint = ", perhaps because memory ran out" if -status == _SIGKILL else ""
    return f"died of {name} (signal {-status}){hint}"
