"""One service as its supervisor sees it: its phase, its lives, whether it hangs, how often it died in a row.

Knows nothing of the other children, nor of processes and clocks: time is an argument.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.services.supervisor.core.events import Heard
from noria.services.supervisor.core.supervision_limits import Limits

# Only the executor's work depends on nobody else: a scheduler that waits for it is busy without progress, and well.
_JUDGED_BY_PROGRESS: Final = (Service.EXECUTOR,)
_PREDICTIONS: Final = 10
_NEVER_READY_DEATHS: Final = 3
_SETTLED_NS: Final = 2_000_000_000
_STEADY_NS: Final = 60_000_000_000


class Phase(StrEnum):
    """Where a child is: not there and to be started, not there until a pause is over, alive, or gone for good."""

    ABSENT = "absent"
    PAUSING = "pausing"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    EXITED = "exited"


@dataclass(slots=True, eq=False)
class Child:
    """One service through all its lives.

    spawned_ns, ready_ns, heard_ns, advanced_ns: when its present life began, became ready, was last heard of, and last
    made progress or had nothing to do. deadline_ns: when it is killed while stopping. due_ns: when a pause is over.
    ready: as it last said; the phase says whether it has been ready in this life, proven whether in any. deaths: in a row.
    asked: to end, because it had begun to. hang: why it was killed.
    """

    service: Service
    phase: Phase = Phase.ABSENT
    pid: int = 0
    lives: int = 0
    deaths: int = 0
    proven: bool = False
    spawned_ns: int = 0
    ready_ns: int = 0
    heard_ns: int | None = None
    advanced_ns: int = 0
    progress: int = 0
    expected_ns: int = 0
    ready: bool = False
    deadline_ns: int | None = None
    due_ns: int | None = None
    killed: bool = False
    asked: bool = False
    hang: str = ""

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self.phase in (Phase.STARTING, Phase.READY, Phase.STOPPING)

    def begin(self, pid: int, now_ns: int) -> None:
        """A life begins."""
        self.phase, self.pid, self.spawned_ns, self.advanced_ns = Phase.STARTING, pid, now_ns, now_ns
        self.lives += 1
        self.heard_ns, self.progress, self.expected_ns, self.ready = None, 0, 0, False
        self.killed, self.asked, self.hang, self.due_ns = False, False, "", None

    def hear(self, news: Heard) -> bool:
        """Take a sign of life; says whether work has advanced since the last one."""
        advanced = news.progress > self.progress
        self.heard_ns, self.progress, self.expected_ns = news.now_ns, news.progress, news.expected_us * 1000
        if advanced or not news.busy or news.state is not State.READY:
            self.advanced_ns = news.now_ns
        self.ready = news.state is State.READY
        if self.phase is Phase.STARTING and self.ready:
            self.phase, self.ready_ns, self.proven = Phase.READY, news.now_ns, True
        return advanced

    def overslept(self, now_ns: int) -> None:
        """Its supervisor was not listening until now: what was not heard says nothing."""
        if self.heard_ns is not None:
            self.heard_ns = now_ns
        self.advanced_ns = now_ns

    def judge(self, now_ns: int, limits: Limits) -> str:
        """Why it must be taken for hung, or empty."""
        if self.killed or self.phase not in (Phase.STARTING, Phase.READY):
            return ""
        if self.phase is Phase.STARTING and self.proven and now_ns - self.spawned_ns > limits.start_ns:
            # The first start of all has a limit of its own.
            return f"was not ready within {_seconds(limits.start_ns)} s"
        if self.heard_ns is not None and now_ns - self.heard_ns > limits.hang_ns:
            return f"gave no sign of life for {_seconds(now_ns - self.heard_ns)} s"
        patience_ns = max(limits.hang_ns, _PREDICTIONS * self.expected_ns)
        if (
            self.service in _JUDGED_BY_PROGRESS
            and self.phase is Phase.READY
            and now_ns - self.advanced_ns > patience_ns
        ):
            return f"has made no progress for {_seconds(now_ns - self.advanced_ns)} s"
        return ""

    def die(self, now_ns: int, limits: Limits, *, wished: bool) -> bool:
        """Its process is gone; it is to be started again after a pause. Says whether it has died too often for that.

        wished: an orderly end that somebody asked for, which is no failure of its own.
        """
        self.deadline_ns = None
        self.deaths += not wished
        if self.deaths >= (limits.deaths if self.proven else min(limits.deaths, _NEVER_READY_DEATHS)):
            self.phase = Phase.EXITED
            return True
        self.phase = Phase.PAUSING
        pause_ns = 0 if self.deaths <= 1 else limits.pause_ns << (self.deaths - 2)
        self.due_ns = now_ns + min(pause_ns, limits.pause_max_ns)
        return False

    def forgive(self, now_ns: int, *, stepped: bool) -> None:
        """Forget earlier deaths once this life has proved itself: a step was done since it settled, or it just lasts."""
        if self.phase is Phase.READY and now_ns - self.ready_ns >= (_SETTLED_NS if stepped else _STEADY_NS):
            self.deaths = 0


def _seconds(span_ns: int) -> str:
    return f"{span_ns / 1e9:.3g}"
