"""Messages between all processes: greetings, heartbeats, draining, and snapshots of state."""

from enum import StrEnum

import msgspec

# The number of the format of all messages between services. It changes when a service could misread another version's messages;
# fields that are appended with defaults do not change it.
WIRE_FORMAT = 1


class State(StrEnum):
    """What a process is doing, as seen by the supervisor and by `noria ps`."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class Hello(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A greeting: the sender is running, with the incarnation in the header; answered by the recipient's own `Hello`.

    `answer` marks the answer, so that two greetings do not go on for ever. `pid` is for people.
    `wire_format`: `WIRE_FORMAT` of the sender's version, 1 where it is absent; a peer of another number is not talked to.
    """

    pid: int
    state: State
    answer: bool = False
    wire_format: int = 1


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sign of life. `progress` counts work done (steps, messages); `busy` says that work is waiting or under way.

    expected_us: how long the work under way should take, where that is predicted; 0 where it is not.
    leaving_ms: the sender ends now and sends no more; how long it may take to be gone. 0 in all but the last.
    """

    state: State
    progress: int = 0
    busy: bool = False
    detail: str = ""
    expected_us: int = 0
    leaving_ms: int = 0


class Drain(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Supervisor to a service: take nothing new, finish what runs for up to `timeout_ms`."""

    timeout_ms: int


class Inspect(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Ask any mailbox for its state, for people and tests; the answer returns to the asker's own socket.

    about: a request, by its number or id, for an answer about it alone, where the service knows it.
    topic: what is asked for: empty is counts and queues, or what is known of `about`. `metrics`: what the process's metrics
    stand at. `spans`: those of its recent spans that belong to the request numbered `about`, or to the trace of that id.
    `who`: its incarnation, age, processor time and memory. `live`: what the scheduler did since `about`, to be watched;
    `story`: what became of the request numbered `about`. `steps`: when the executor's last `about` steps were what.
    """

    about: str = ""
    topic: str = ""


class Snapshot(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to `Inspect`: `json` is an object of counts and queues, or the answer to the topic."""

    service: str
    pid: int
    state: State
    json: bytes


BETWEEN_SERVICES = (Hello, Heartbeat)
TO_SERVICE = (*BETWEEN_SERVICES, Drain)
FROM_INSPECTOR = (Inspect,)
TO_INSPECTOR = (Snapshot,)
