"""What happens to a stack (events, past) and what is to be done about it (replies, imperative)."""

import msgspec

from noria.proto.base import Service


class Begun(msgspec.Struct, frozen=True):
    """Start everything."""

    now_ns: int


class Spawned(msgspec.Struct, frozen=True):
    """A child runs."""

    service: Service
    pid: int
    now_ns: int


class Reported(msgspec.Struct, frozen=True):
    """A child says whether it is ready."""

    service: Service
    ready: bool
    now_ns: int


class Exited(msgspec.Struct, frozen=True):
    """A child is gone. `status` is its exit status, or minus the signal that ended it."""

    service: Service
    status: int
    now_ns: int


class StopAsked(msgspec.Struct, frozen=True):
    """Someone wants the stack to end; asked again, at once."""

    now_ns: int


class Ticked(msgspec.Struct, frozen=True):
    """Time has passed."""

    now_ns: int


Event = Begun | Spawned | Reported | Exited | StopAsked | Ticked


class Spawn(msgspec.Struct, frozen=True):
    """Start this service; answer with `Spawned`."""

    service: Service


class Terminate(msgspec.Struct, frozen=True):
    """Ask this child to end (SIGTERM)."""

    service: Service


class Kill(msgspec.Struct, frozen=True):
    """End this child by force (SIGKILL). `overdue`: it was asked and did not end in time."""

    service: Service
    overdue: bool


class Served(msgspec.Struct, frozen=True):
    """Every child is ready, so long after the start."""

    start_ms: int


class Over(msgspec.Struct, frozen=True):
    """Every child is gone: leave with this exit status; `cause` says what went wrong, empty after an orderly stop."""

    exit_status: int
    cause: str


Reply = Spawn | Terminate | Kill | Served | Over
