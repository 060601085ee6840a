"""One supervised service: its phase, its starts, whether it hangs, and how often it died in a row.

    ABSENT ──start_life──▶ STARTING ──ready──▶ READY
      ▲                       │                 │
      │ pause over            └─── record_exit ─┤
      │                                         ▼
      └────────────────────────────────────── PAUSING     (too many deaths in a row: EXITED)

    STARTING, READY ──the stack stops──▶ STOPPING ──the process ends──▶ EXITED

Knows nothing of the other children, nor of processes and clocks: time is an argument, in nanoseconds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.services.supervisor.core.events import HeartbeatReceived
from noria.services.supervisor.core.supervision_limits import SupervisionLimits

# Only the executor's work depends on nobody else: a scheduler that waits for it is busy without progress, and well.
_JUDGED_BY_PROGRESS: Final = (Service.EXECUTOR,)
_PREDICTIONS: Final = 10
_NEVER_READY_DEATHS: Final = 3
_SETTLED_NS: Final = 2_000_000_000
_STEADY_NS: Final = 60_000_000_000


class ChildPhase(StrEnum):
    """The phase of one supervised service.

    ABSENT: no process; to be started now. PAUSING: no process; to be started when the pause is over. STARTING: the process
    runs and is not ready. READY: it has reported ready. STOPPING: it was told to end. EXITED: no process, and no more starts.
    """

    ABSENT = "absent"
    PAUSING = "pausing"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    EXITED = "exited"


@dataclass(slots=True, eq=False)
class Child:
    """A supervised service, from its first start through all restarts.

    Times are of the monotonic clock, in nanoseconds.
    """

    service: Service
    phase: ChildPhase = ChildPhase.ABSENT
    pid: int = 0  # of the present process, or of the last one
    starts: int = 0  # processes so far, adopted ones included
    deaths: int = 0  # unrequested exits in a row
    ever_ready: bool = False  # whether any process of this service became ready
    spawned_ns: int = 0  # when the present process was started or adopted
    ready_ns: int = 0  # when the present process became ready; valid in phase READY
    last_heartbeat_ns: int | None = None  # None until the present process is heard from
    last_progress_ns: int = 0  # when work last advanced, or there was none
    progress: int = 0  # work done so far, as the last heartbeat says
    expected_ns: int = 0  # how long the step under way should take
    ready: bool = False  # what the last heartbeat says
    stop_ordered_ns: int = 0  # when it was told to stop; valid in phase STOPPING
    stop_deadline_ns: int | None = None  # when it is killed; set in phase STOPPING
    exit_due_ns: int | None = None  # when the process must be gone; set once it has announced that it ends
    restart_due_ns: int | None = None  # when the pause is over; set in phase PAUSING
    killed: bool = False  # whether SIGKILL was ordered
    asked_to_stop: bool = False  # whether SIGTERM was ordered because it had begun to drain by itself
    hang: str = ""  # why it was killed, empty when it was not

    @property
    def alive(self) -> bool:
        """Whether the service has a process."""
        return self.phase in (ChildPhase.STARTING, ChildPhase.READY, ChildPhase.STOPPING)

    def start_life(self, pid: int, now_ns: int) -> None:
        """Record that a process of this service was started or adopted."""
        self.phase, self.pid, self.spawned_ns, self.last_progress_ns = ChildPhase.STARTING, pid, now_ns, now_ns
        self.starts += 1
        self.last_heartbeat_ns, self.progress, self.expected_ns, self.ready = None, 0, 0, False
        self.killed, self.asked_to_stop, self.hang, self.restart_due_ns = False, False, "", None
        self.exit_due_ns = None

    def record_heartbeat(self, heartbeat: HeartbeatReceived) -> bool:
        """Record a heartbeat; returns whether work has advanced since the last one."""
        advanced = heartbeat.progress > self.progress
        self.last_heartbeat_ns, self.progress, self.expected_ns = (
            heartbeat.now_ns,
            heartbeat.progress,
            heartbeat.expected_us * 1000,
        )
        if advanced or not heartbeat.busy or heartbeat.state is not State.READY:
            self.last_progress_ns = heartbeat.now_ns
        self.ready = heartbeat.state is State.READY
        if self.phase is ChildPhase.STARTING and self.ready:
            self.phase, self.ready_ns, self.ever_ready = ChildPhase.READY, heartbeat.now_ns, True
        if heartbeat.leaving_ns:
            self.exit_due_ns = heartbeat.now_ns + heartbeat.leaving_ns
            if self.stop_deadline_ns is not None:
                self.stop_deadline_ns = max(self.stop_deadline_ns, self.exit_due_ns)
        return advanced

    def ignore_silence(self, now_ns: int) -> None:
        """Restart the hang timers, because the supervisor itself was not running and could hear nothing."""
        if self.last_heartbeat_ns is not None:
            self.last_heartbeat_ns = now_ns
        self.last_progress_ns = now_ns

    def hang_reason(self, now_ns: int, limits: SupervisionLimits) -> str:
        """Why the service counts as hung, in words for the log; empty when it does not."""
        if self.killed or self.phase not in (ChildPhase.STARTING, ChildPhase.READY):
            return ""
        if self.exit_due_ns is not None:
            return "" if now_ns <= self.exit_due_ns else "did not end in the time that it may take"
        if self.phase is ChildPhase.STARTING and self.ever_ready and now_ns - self.spawned_ns > limits.start_ns:
            # The first start of all has a limit of its own.
            return f"was not ready within {_seconds(limits.start_ns)} s"
        if self.last_heartbeat_ns is not None and now_ns - self.last_heartbeat_ns > limits.hang_ns:
            return f"gave no sign of life for {_seconds(now_ns - self.last_heartbeat_ns)} s"
        patience_ns = max(limits.hang_ns, _PREDICTIONS * self.expected_ns)
        if (
            self.service in _JUDGED_BY_PROGRESS
            and self.phase is ChildPhase.READY
            and now_ns - self.last_progress_ns > patience_ns
        ):
            return f"has made no progress for {_seconds(now_ns - self.last_progress_ns)} s"
        return ""

    def record_exit(self, now_ns: int, limits: SupervisionLimits, *, requested: bool) -> bool:
        """Record that the process is gone, and schedule the next start; returns True when it has died too often for one.

        requested: somebody asked for this orderly end, so it does not count as a death.
        """
        self.stop_deadline_ns = None
        self.deaths += not requested
        if self.deaths >= (limits.deaths if self.ever_ready else min(limits.deaths, _NEVER_READY_DEATHS)):
            self.phase = ChildPhase.EXITED
            return True
        self.phase = ChildPhase.PAUSING
        pause_ns = 0 if self.deaths <= 1 else limits.pause_ns << (self.deaths - 2)
        self.restart_due_ns = now_ns + min(pause_ns, limits.pause_max_ns)
        return False

    def forget_deaths(self, now_ns: int, *, stepped: bool) -> None:
        """Reset the count of deaths once the present process has proved itself.

        stepped: a step was just done, which proves it 2 s after it became ready; else it takes 60 s.
        """
        if self.phase is ChildPhase.READY and now_ns - self.ready_ns >= (_SETTLED_NS if stepped else _STEADY_NS):
            self.deaths = 0


def _seconds(span_ns: int) -> str:
    return f"{span_ns / 1e9:.3g}"
