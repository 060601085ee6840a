"""The life of a stack: whom to start, start again, stop or kill next, and how it all ends.

Events go in, replies come out; the shell spawns and signals. Knows nothing of processes, sockets or clocks: time is a
field of events. An event that cannot happen in the present phase raises `IllegalEvent` and changes nothing.
"""

from typing import Final, assert_never

from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.services.supervisor.core.child import Child, Phase
from noria.services.supervisor.core.events import (
    Adopted,
    Begun,
    Event,
    Exited,
    Heard,
    Kill,
    Over,
    Quiesce,
    Relieve,
    Reply,
    Served,
    Spawn,
    Spawned,
    StopAsked,
    Terminate,
    Ticked,
)
from noria.services.supervisor.core.exit_causes import describe_exit, quote
from noria.services.supervisor.core.stack_phase import (
    EXIT_FAILED,
    EXIT_ORDERLY,
    EXIT_USER_ERROR,
    START_ORDER,
    STOP_ORDER,
    Course,
    IllegalEvent,
)
from noria.services.supervisor.core.supervision_limits import Limits

_SIGTERM: Final = 15
# Whose steps show that tokens are made.
_MAKERS: Final = (Service.SCHEDULER, Service.EXECUTOR)
_DRAIN_MARGIN_NS: Final = 2_000_000_000


class Stack:
    """All children of one supervisor."""

    def __init__(self, limits: Limits) -> None:
        self.children = {service: Child(service) for service in START_ORDER}
        self.course = Course.IDLE
        self._limits = limits
        self._begun_ns = 0
        self._ticked_ns = 0
        self._drained_ns = 0
        self._exit_status = EXIT_ORDERLY
        self._cause = ""

    def apply(self, event: Event) -> list[Reply]:
        """Take one event and say what to do now. Raises IllegalEvent."""
        match event:
            case Begun():
                return self._begin(event)
            case Spawned() | Adopted():
                return self._came(event)
            case Heard():
                return self._heard(event)
            case Exited():
                return self._exited(event)
            case StopAsked():
                return self._stop_asked(event)
            case Ticked():
                return self._ticked(event)
            case _ as never:
                assert_never(never)

    def wanted_ns(self) -> int | None:
        """When the next `Ticked` is due, or None when only signs of life are waited for."""
        wanted = [
            at
            for child in self.children.values()
            for at in (child.deadline_ns, child.due_ns if self._running else None)
            if at is not None
        ]
        if self.course is Course.STARTING:
            wanted.append(self._begun_ns + self._limits.start_ns)
        if self.course is Course.DRAINING:
            wanted.append(self._drained_ns)
        return min(wanted, default=None)

    def check(self) -> None:
        """State the invariants; raises AssertionError when one does not hold."""
        phases = [child.phase for child in self.children.values()]
        if self.course is Course.OVER:
            assert not any(child.alive for child in self.children.values())
        if self.course < Course.STOPPING:
            assert not self._cause
            assert Phase.STOPPING not in phases and Phase.EXITED not in phases
        for child in self.children.values():
            assert (child.deadline_ns is not None) == (child.phase is Phase.STOPPING and not child.killed)
            assert child.pid > 0 or not child.alive
            assert (child.phase is Phase.PAUSING) == (child.due_ns is not None)
            assert child.deaths == 0 or child.deaths < self._limits.deaths or child.phase is Phase.EXITED

    @property
    def _running(self) -> bool:
        return Course.STARTING <= self.course <= Course.DRAINING

    def _begin(self, event: Begun) -> list[Reply]:
        self._require(self.course is Course.IDLE, event)
        self.course = Course.STARTING
        self._begun_ns = self._ticked_ns = event.now_ns
        return [Spawn(service) for service in START_ORDER if not self.children[service].alive]

    def _came(self, event: Spawned | Adopted) -> list[Reply]:
        child = self.children[event.service]
        if isinstance(event, Spawned):
            self._require(child.phase is Phase.ABSENT and self._running, event)
        else:
            # It may turn out to live only when the twin that was to replace it finds its place taken.
            self._require(child.phase in (Phase.ABSENT, Phase.STARTING), event)
        child.begin(event.pid, event.now_ns)
        return []

    def _heard(self, event: Heard) -> list[Reply]:
        child = self.children[event.service]
        self._require(child.alive, event)
        was_ready = child.ready
        advanced = child.hear(event)
        if advanced and event.service in _MAKERS:
            for each in self.children.values():
                each.forgive(event.now_ns, stepped=True)
        if self.course is Course.STARTING and all(each.ready for each in self.children.values()):
            self.course = Course.SERVING
            return [Served((event.now_ns - self._begun_ns) // 1_000_000)]
        if self.course is Course.DRAINING and event.service is Service.ADMISSION:
            if event.state is State.STOPPED:
                return self._stop_next(event.now_ns)
            if child.ready and not was_ready:  # a new life that has not been told
                return [self._quiesce(event.now_ns)]
        if self.course in (Course.STARTING, Course.SERVING):
            return self._unasked(child, event)
        return []

    def _unasked(self, child: Child, event: Heard) -> list[Reply]:
        """A child may stop without this supervisor's will: by a signal from outside, or as its last supervisor wanted."""
        if child.service is Service.GATEWAY and event.state is State.STOPPED:
            child.die(event.now_ns, self._limits, wished=True)
            return [Relieve(child.service), *self._start_due(event.now_ns)]
        if event.state in (State.DRAINING, State.STOPPED) and not child.asked:
            child.asked = True
            return [Terminate(child.service)]
        return []

    def _exited(self, event: Exited) -> list[Reply]:
        child = self.children[event.service]
        self._require(child.alive, event)
        name = event.service.value
        if not self._running:
            child.phase, child.deadline_ns = Phase.EXITED, None
            if not child.killed and event.status not in (0, -_SIGTERM, None):
                self._fail(f"{name} {describe_exit(event.status)} while the stack was stopping")
            return self._stop_next(event.now_ns)
        if event.status == EXIT_USER_ERROR and not child.proven:
            child.phase = Phase.EXITED
            self._fail(f"{name} could not start, it says why above", EXIT_USER_ERROR)
            return self._stop_next(event.now_ns)
        wished = child.phase is Phase.READY and not child.killed and event.status in (0, -_SIGTERM)
        if child.die(event.now_ns, self._limits, wished=wished):
            times = (
                f"{child.deaths} times in a row without a step in between, the last time it "
                if child.deaths > 1
                else ""
            )
            ended = describe_exit(event.status, child.hang)
            self._fail(f"{name} {'died ' if times else ''}{times}{ended}{_last(event.words)}")
            return self._stop_next(event.now_ns)
        return self._start_due(event.now_ns)

    def _stop_asked(self, event: StopAsked) -> list[Reply]:
        match self.course:
            case Course.OVER:
                return []
            case Course.SERVING if self.children[Service.ADMISSION].alive:
                self.course = Course.DRAINING
                self._drained_ns = event.now_ns + self._limits.drain_ns + _DRAIN_MARGIN_NS
                return [self._quiesce(event.now_ns)]
            case Course.IDLE | Course.STARTING | Course.SERVING:
                return self._stop_next(event.now_ns)
            case Course.DRAINING | Course.STOPPING:
                self._fail("killed at the second signal")
                self.course = Course.STOPPING
                alive = [child for child in self.children.values() if child.alive and not child.killed]
                return [self._kill(child, "a second signal came") for child in alive] or self._stop_next(event.now_ns)

    def _ticked(self, event: Ticked) -> list[Reply]:
        now_ns, limits = event.now_ns, self._limits
        overslept, self._ticked_ns = now_ns - self._ticked_ns > limits.hang_ns // 2, now_ns
        if self.course is Course.STARTING and now_ns >= self._begun_ns + limits.start_ns:
            late = ", ".join(child.service.value for child in self.children.values() if not child.ready)
            self._fail(
                f"not ready within {limits.start_ns / 1e9:g} s: {late}; see the log above, or raise runtime.start_timeout_s"
            )
            return self._stop_next(now_ns)
        if self.course is Course.DRAINING and now_ns >= self._drained_ns:
            return self._stop_next(now_ns)
        replies: list[Reply] = []
        for child in self.children.values():
            if self._running:
                if overslept:
                    child.overslept(now_ns)
                child.forgive(now_ns, stepped=False)
                child.hang = child.hang or child.judge(now_ns, limits)
                if child.hang and not child.killed:
                    child.killed = True
                    replies.append(Kill(child.service, child.hang))
            elif child.deadline_ns is not None and now_ns >= child.deadline_ns:
                why = f"did not stop within {limits.stop_ns / 1e9:g} s"
                self._fail(f"{child.service.value} {why} and was killed")
                replies.append(self._kill(child, why))
        return [*replies, *self._start_due(now_ns)]

    def _start_due(self, now_ns: int) -> list[Reply]:
        due = [
            child
            for child in self.children.values()
            if self._running and child.due_ns is not None and child.due_ns <= now_ns
        ]
        for child in due:
            child.phase, child.due_ns = Phase.ABSENT, None
        return [Spawn(child.service) for child in due]

    def _quiesce(self, now_ns: int) -> Quiesce:
        return Quiesce(max(0, self._drained_ns - _DRAIN_MARGIN_NS - now_ns) // 1_000_000)

    def _stop_next(self, now_ns: int) -> list[Reply]:
        """One child after the other, so that each can still hand its last messages to the next."""
        if self.course < Course.DRAINING:  # there is no time for what runs, but whoever waits for it must be told
            self.course = Course.STOPPING
            return [Quiesce(0), *self._stop_next(now_ns)]
        self.course = Course.STOPPING
        if any(child.phase is Phase.STOPPING for child in self.children.values()):
            return []
        for service in STOP_ORDER:
            child = self.children[service]
            if child.killed and child.alive:
                child.phase = Phase.STOPPING
                return []
            if child.alive:
                child.phase = Phase.STOPPING
                child.deadline_ns = now_ns + self._limits.stop_ns
                return [Terminate(service)]
        self.course = Course.OVER
        return [Over(self._exit_status, self._cause)]

    def _kill(self, child: Child, why: str) -> Kill:
        child.phase, child.killed, child.deadline_ns = Phase.STOPPING, True, None
        return Kill(child.service, why)

    def _fail(self, cause: str, exit_status: int = EXIT_FAILED) -> None:
        """The first cause is the one that counts: what follows it is its consequence."""
        if not self._cause:
            self._cause, self._exit_status = cause, exit_status

    def _require(self, legal: bool, event: Event) -> None:
        if not legal:
            raise IllegalEvent(f"{event!r} while {self.course.name}")


def _last(words: str) -> str:
    quoted = quote(words)
    return f"; it said last:{quoted}" if quoted else "; its last log lines are above"
