"""What happens to a stack (events, past) and what is to be done about it (replies, imperative)."""

import msgspec

from noria.proto.base import Service
from noria.proto.lifecycle import State


class Begun(msgspec.Struct, frozen=True):
    """Start everything that does not run yet."""

    now_ns: int


class Spawned(msgspec.Struct, frozen=True):
    """A child runs."""

    service: Service
    pid: int
    now_ns: int


class Adopted(msgspec.Struct, frozen=True):
    """A service of an earlier supervisor runs, perhaps in place of the child that was just started."""

    service: Service
    pid: int
    now_ns: int


class Heard(msgspec.Struct, frozen=True):
    """A child's sign of life: its state, work done so far, whether work is under way and how long it should take.

    leaving_ns: it ends now and gives no more signs; how long that may take. 0 while it goes on.
    """

    service: Service
    state: State
    progress: int
    busy: bool
    expected_us: int
    now_ns: int
    leaving_ns: int = 0


class Exited(msgspec.Struct, frozen=True):
    """A child is gone.

    status: its exit status, or minus the signal that ended it; None when only an earlier supervisor could know.
    words: what it said last.
    """

    service: Service
    status: int | None
    now_ns: int
    words: str = ""


class StopAsked(msgspec.Struct, frozen=True):
    """Someone wants the stack to end; asked again, at once."""

    now_ns: int


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed."""

    now_ns: int


Event = Begun | Spawned | Adopted | Heard | Exited | StopAsked | Ticked


class Spawn(msgspec.Struct, frozen=True):
    """Start this service; answer with `Spawned`."""

    service: Service


class Terminate(msgspec.Struct, frozen=True):
    """Ask this child to end (SIGTERM)."""

    service: Service


class Kill(msgspec.Struct, frozen=True):
    """End this child by force (SIGKILL), and say why."""

    service: Service
    why: str


class Relieve(msgspec.Struct, frozen=True):
    """A child has given up its place and only finishes what it has begun: keep it apart from its successor."""

    service: Service


class Quiesce(msgspec.Struct, frozen=True):
    """Have the doors take nothing new, and what runs be finished, for so long."""

    timeout_ms: int


class Served(msgspec.Struct, frozen=True):
    """Every child is ready, so long after the start."""

    start_ms: int


class Over(msgspec.Struct, frozen=True):
    """Every child is gone: leave with this exit status; `cause` says what went wrong, empty after an orderly stop."""

    exit_status: int
    cause: str


Reply = Spawn | Terminate | Kill | Relieve | Quiesce | Served | Over
