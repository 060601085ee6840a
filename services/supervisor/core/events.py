"""The events that the core of the supervisor takes, and the actions that it returns for the shell to carry out.

All times are nanoseconds of the monotonic clock.
"""

import msgspec

from noria.proto.base import Service
from noria.proto.lifecycle import State


class StartRequested(msgspec.Struct, frozen=True):
    """The supervisor starts; services of an earlier one have been reported with `ChildAdopted` before."""

    now_ns: int


class ChildSpawned(msgspec.Struct, frozen=True):
    """A child process was started."""

    service: Service
    pid: int
    now_ns: int


class ChildAdopted(msgspec.Struct, frozen=True):
    """A service that an earlier supervisor started was taken over, perhaps in place of a child that was just started."""

    service: Service
    pid: int
    now_ns: int


class HeartbeatReceived(msgspec.Struct, frozen=True):
    """A child sent a heartbeat.

    progress: work done so far. busy: work is under way. expected_us: how long that work should take, 0 when unknown.
    leaving_ns: the child ends now and sends no more heartbeats; how long that may take. 0 while it goes on.
    """

    service: Service
    state: State
    progress: int
    busy: bool
    expected_us: int
    now_ns: int
    leaving_ns: int = 0


class ChildExited(msgspec.Struct, frozen=True):
    """A child process ended.

    status: its exit status, or minus the signal that ended it; None when only an earlier supervisor could know.
    last_output: the last lines that it wrote, for the error message.
    """

    service: Service
    status: int | None
    now_ns: int
    last_output: str = ""


class StopRequested(msgspec.Struct, frozen=True):
    """A signal asks for an orderly stop; a second one asks for an immediate stop."""

    now_ns: int


class TimerTicked(msgspec.Struct, frozen=True):
    """A timer ran out: look at every deadline."""

    now_ns: int


StackEvent = (
    StartRequested | ChildSpawned | ChildAdopted | HeartbeatReceived | ChildExited | StopRequested | TimerTicked
)


class SpawnChild(msgspec.Struct, frozen=True):
    """Start a process of this service, then report `ChildSpawned`."""

    service: Service


class TerminateChild(msgspec.Struct, frozen=True):
    """Send SIGTERM to this child."""

    service: Service


class KillChild(msgspec.Struct, frozen=True):
    """Send SIGKILL to this child. why: the reason, for the log."""

    service: Service
    why: str


class RetireChild(msgspec.Struct, frozen=True):
    """Let this child finish its open work in the background; a successor takes its place."""

    service: Service


class DrainIntake(msgspec.Struct, frozen=True):
    """Have gateway and admission refuse new requests, and give running ones `timeout_ms` to finish."""

    timeout_ms: int


class AnnounceReady(msgspec.Struct, frozen=True):
    """Print the start-up table: every child is ready, `start_ms` after the start."""

    start_ms: int


class ExitSupervisor(msgspec.Struct, frozen=True):
    """End the supervisor with this exit status, as every child is gone. cause: what failed; empty after an orderly stop."""

    exit_status: int
    cause: str


StackAction = SpawnChild | TerminateChild | KillChild | RetireChild | DrainIntake | AnnounceReady | ExitSupervisor
