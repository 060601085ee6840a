"""Decides which service to start, restart, stop or kill next, and with what exit status the supervisor ends.

Events go in, actions come out; the shell spawns and signals. The phases are drawn in `stack_phase` and `child`. Knows
nothing of processes, sockets or clocks: time is a field of events. An event that cannot happen in the present phase raises
`IllegalEvent` and changes nothing.
"""

from typing import Final, assert_never

from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.services.supervisor.core.child import Child, ChildPhase
from noria.services.supervisor.core.events import (
    AnnounceReady,
    ChildAdopted,
    ChildExited,
    ChildSpawned,
    DrainIntake,
    ExitSupervisor,
    HeartbeatReceived,
    KillChild,
    RetireChild,
    SpawnChild,
    StackAction,
    StackEvent,
    StartRequested,
    StopRequested,
    TerminateChild,
    TimerTicked,
)
from noria.services.supervisor.core.exit_causes import describe_exit, quote
from noria.services.supervisor.core.stack_phase import (
    EXIT_FAILED,
    EXIT_ORDERLY,
    EXIT_USER_ERROR,
    START_ORDER,
    STOP_ORDER,
    IllegalEvent,
    StackPhase,
)
from noria.services.supervisor.core.supervision_limits import SupervisionLimits

_SIGTERM: Final = 15
# These take requests, and must be told when no more are wanted.
_INTAKE_SERVICES: Final = (Service.ADMISSION, Service.GATEWAY)
# Progress of these services shows that tokens are produced.
_TOKEN_SERVICES: Final = (Service.SCHEDULER, Service.EXECUTOR)
_DRAIN_MARGIN_NS: Final = 2_000_000_000


class Stack:
    """All children of one supervisor, and the phase of the whole stack."""

    def __init__(self, limits: SupervisionLimits) -> None:
        self.children = {service: Child(service) for service in START_ORDER}
        self.phase = StackPhase.IDLE
        self._limits = limits
        self._started_ns = 0
        self._last_tick_ns = 0
        self._drain_deadline_ns = 0
        self._exit_status = EXIT_ORDERLY
        self._cause = ""

    def apply(self, event: StackEvent) -> list[StackAction]:
        """Apply one event; returns the actions to carry out, in order. Raises IllegalEvent, having changed nothing."""
        match event:
            case StartRequested():
                return self._start(event)
            case ChildSpawned() | ChildAdopted():
                return self._child_started(event)
            case HeartbeatReceived():
                return self._heartbeat_received(event)
            case ChildExited():
                return self._child_exited(event)
            case StopRequested():
                return self._stop_requested(event)
            case TimerTicked():
                return self._timer_ticked(event)
            case _ as never:
                assert_never(never)

    def next_timer_ns(self) -> int | None:
        """When the next `TimerTicked` is due, in monotonic nanoseconds; None when there is no deadline."""
        timers_ns = [
            at
            for child in self.children.values()
            for at in (child.stop_deadline_ns, child.restart_due_ns if self._running else None)
            if at is not None
        ]
        if self.phase is StackPhase.STARTING:
            timers_ns.append(self._started_ns + self._limits.start_ns)
        if self.phase is StackPhase.DRAINING:
            timers_ns.append(self._drain_deadline_ns)
        return min(timers_ns, default=None)

    def check(self) -> None:
        """Check the invariants. Raises AssertionError when one does not hold."""
        phases = [child.phase for child in self.children.values()]
        if self.phase is StackPhase.OVER:
            assert not any(child.alive for child in self.children.values())
        if self.phase < StackPhase.STOPPING:
            assert not self._cause
            assert ChildPhase.STOPPING not in phases and ChildPhase.EXITED not in phases
        for child in self.children.values():
            assert (child.stop_deadline_ns is not None) == (child.phase is ChildPhase.STOPPING and not child.killed)
            assert child.pid > 0 or not child.alive
            assert (child.phase is ChildPhase.PAUSING) == (child.restart_due_ns is not None)
            assert child.deaths == 0 or child.deaths < self._limits.deaths or child.phase is ChildPhase.EXITED

    @property
    def _running(self) -> bool:
        return StackPhase.STARTING <= self.phase <= StackPhase.DRAINING

    def _start(self, event: StartRequested) -> list[StackAction]:
        self._require(self.phase is StackPhase.IDLE, event)
        self.phase = StackPhase.STARTING
        self._started_ns = self._last_tick_ns = event.now_ns
        return [SpawnChild(service) for service in START_ORDER if not self.children[service].alive]

    def _child_started(self, event: ChildSpawned | ChildAdopted) -> list[StackAction]:
        child = self.children[event.service]
        if isinstance(event, ChildSpawned):
            self._require(child.phase is ChildPhase.ABSENT and self._running, event)
        else:
            # It may be found alive only when the process that was to replace it finds the lock taken.
            self._require(child.phase in (ChildPhase.ABSENT, ChildPhase.STARTING), event)
        child.start_life(event.pid, event.now_ns)
        return []

    def _heartbeat_received(self, event: HeartbeatReceived) -> list[StackAction]:
        child = self.children[event.service]
        self._require(child.alive, event)
        was_ready = child.ready
        advanced = child.record_heartbeat(event)
        if advanced and event.service in _TOKEN_SERVICES:
            for each in self.children.values():
                each.forget_deaths(event.now_ns, stepped=True)
        if self.phase is StackPhase.STARTING and all(each.ready for each in self.children.values()):
            self.phase = StackPhase.SERVING
            return [AnnounceReady((event.now_ns - self._started_ns) // 1_000_000)]
        if self.phase is StackPhase.DRAINING and event.service in _INTAKE_SERVICES:
            if event.state is State.STOPPED and event.service is Service.ADMISSION:
                return self._stop_next(event.now_ns)
            if child.ready and not was_ready:  # a restarted one does not know of the drain yet
                return [self._drain_intake(event.now_ns)]
        if self.phase in (StackPhase.STARTING, StackPhase.SERVING):
            return self._stopping_by_itself(child, event)
        return []

    def _stopping_by_itself(self, child: Child, event: HeartbeatReceived) -> list[StackAction]:
        """Handle a child that stops without an order: by a signal from outside, or as an earlier supervisor ordered."""
        if child.service is Service.GATEWAY and event.state is State.STOPPED:
            child.record_exit(event.now_ns, self._limits, requested=True)
            return [RetireChild(child.service), *self._spawn_due(event.now_ns)]
        if event.state in (State.DRAINING, State.STOPPED) and not child.asked_to_stop:
            child.asked_to_stop = True
            return [TerminateChild(child.service)]
        return []

    def _child_exited(self, event: ChildExited) -> list[StackAction]:
        child = self.children[event.service]
        self._require(child.alive, event)
        name = event.service.value
        if not self._running:
            child.phase, child.stop_deadline_ns = ChildPhase.EXITED, None
            if not child.killed and event.status not in (0, -_SIGTERM, None):
                self._fail(f"{name} {describe_exit(event.status)} while the stack was stopping")
            return self._stop_next(event.now_ns)
        if event.status == EXIT_USER_ERROR and not child.ever_ready:
            child.phase = ChildPhase.EXITED
            self._fail(f"{name} could not start, it says why above", EXIT_USER_ERROR)
            return self._stop_next(event.now_ns)
        requested = child.phase is ChildPhase.READY and not child.killed and event.status in (0, -_SIGTERM)
        if child.record_exit(event.now_ns, self._limits, requested=requested):
            times = (
                f"{child.deaths} times in a row without a step in between, the last time it "
                if child.deaths > 1
                else ""
            )
            ended = describe_exit(event.status, child.hang)
            self._fail(f"{name} {'died ' if times else ''}{times}{ended}{_quoted_last_output(event.last_output)}")
            return self._stop_next(event.now_ns)
        return self._spawn_due(event.now_ns)

    def _stop_requested(self, event: StopRequested) -> list[StackAction]:
        match self.phase:
            case StackPhase.OVER:
                return []
            case StackPhase.SERVING if self.children[Service.ADMISSION].alive:
                self.phase = StackPhase.DRAINING
                self._drain_deadline_ns = event.now_ns + self._limits.drain_ns + _DRAIN_MARGIN_NS
                return [self._drain_intake(event.now_ns)]
            case StackPhase.IDLE | StackPhase.STARTING | StackPhase.SERVING:
                return self._stop_next(event.now_ns)
            case StackPhase.DRAINING | StackPhase.STOPPING:
                self._fail("killed at the second signal")
                self.phase = StackPhase.STOPPING
                alive = [child for child in self.children.values() if child.alive and not child.killed]
                return [self._kill(child, "a second signal came") for child in alive] or self._stop_next(event.now_ns)

    def _timer_ticked(self, event: TimerTicked) -> list[StackAction]:
        now_ns, limits = event.now_ns, self._limits
        overslept, self._last_tick_ns = now_ns - self._last_tick_ns > limits.hang_ns // 2, now_ns
        if self.phase is StackPhase.STARTING and now_ns >= self._started_ns + limits.start_ns:
            late = ", ".join(child.service.value for child in self.children.values() if not child.ready)
            self._fail(
                f"not ready within {limits.start_ns / 1e9:g} s: {late}; see the log above, or raise runtime.start_timeout_s"
            )
            return self._stop_next(now_ns)
        if self.phase is StackPhase.DRAINING and now_ns >= self._drain_deadline_ns:
            return self._stop_next(now_ns)
        actions: list[StackAction] = []
        for child in self.children.values():
            if self._running:
                if overslept:
                    child.ignore_silence(now_ns)
                child.forget_deaths(now_ns, stepped=False)
                child.hang = child.hang or child.hang_reason(now_ns, limits)
                if child.hang and not child.killed:
                    child.killed = True
                    actions.append(KillChild(child.service, child.hang))
            elif child.stop_deadline_ns is not None and now_ns >= child.stop_deadline_ns:
                why = f"did not stop within {(child.stop_deadline_ns - child.stop_ordered_ns) / 1e9:.3g} s"
                self._fail(f"{child.service.value} {why} and was killed")
                actions.append(self._kill(child, why))
        return [*actions, *self._spawn_due(now_ns)]

    def _spawn_due(self, now_ns: int) -> list[StackAction]:
        due = [
            child
            for child in self.children.values()
            if self._running and child.restart_due_ns is not None and child.restart_due_ns <= now_ns
        ]
        for child in due:
            child.phase, child.restart_due_ns = ChildPhase.ABSENT, None
        return [SpawnChild(child.service) for child in due]

    def _drain_intake(self, now_ns: int) -> DrainIntake:
        return DrainIntake(max(0, self._drain_deadline_ns - _DRAIN_MARGIN_NS - now_ns) // 1_000_000)

    def _stop_next(self, now_ns: int) -> list[StackAction]:
        """Stop the next child in STOP_ORDER: one at a time, so that each can hand its last messages to the next."""
        if self.phase < StackPhase.DRAINING:  # there is no time for what runs, but whoever waits for it must be told
            self.phase = StackPhase.STOPPING
            return [DrainIntake(0), *self._stop_next(now_ns)]
        self.phase = StackPhase.STOPPING
        if any(child.phase is ChildPhase.STOPPING for child in self.children.values()):
            return []
        for service in STOP_ORDER:
            child = self.children[service]
            if child.killed and child.alive:
                child.phase = ChildPhase.STOPPING
                return []
            if child.alive:
                child.phase = ChildPhase.STOPPING
                child.stop_ordered_ns, child.stop_deadline_ns = now_ns, now_ns + self._limits.stop_ns
                return [TerminateChild(service)]
        self.phase = StackPhase.OVER
        return [ExitSupervisor(self._exit_status, self._cause)]

    def _kill(self, child: Child, why: str) -> KillChild:
        child.phase, child.killed, child.stop_deadline_ns = ChildPhase.STOPPING, True, None
        return KillChild(child.service, why)

    def _fail(self, cause: str, exit_status: int = EXIT_FAILED) -> None:
        """Record why the stack failed; only the first cause is kept, as later ones follow from it."""
        if not self._cause:
            self._cause, self._exit_status = cause, exit_status

    def _require(self, legal: bool, event: StackEvent) -> None:
        if not legal:
            raise IllegalEvent(f"{event!r} while {self.phase.name}")


def _quoted_last_output(last_output: str) -> str:
    quoted = quote(last_output)
    return f"; it said last:{quoted}" if quoted else "; its last log lines are above"
