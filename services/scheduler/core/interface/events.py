"""What happens to the scheduler's core, and what it answers.

An event is a message of the protocol, or one of the facts about peers and time below, with the time at which it was
received. A list of events and planning times replays a run exactly.
"""

from enum import IntEnum
from typing import NamedTuple

from noria.proto.base import Ended, Stream
from noria.proto.execution import Geometry, Inventory, StepDone, StepFailed
from noria.proto.output import Progress, Resend, TokenRun
from noria.proto.scheduling import Reclaimed, Spent, Submit, Withdraw
from noria.services.scheduler.core.interface.traffic_rules import FairRules


class IllegalEventError(Exception):
    """An event that cannot have happened if every peer kept to the protocol; the core has not changed."""


class AdmissionJoined(NamedTuple):
    """Admission began a new life, or was missed: it names its streams anew, counted from zero."""


class TimePassed(NamedTuple):
    """Time has passed and nothing else: requests out of time end."""


class PolicyChanged(NamedTuple):
    """The configuration was read again: this policy, with these classes and tenants, from now on."""

    policy: str
    rules: FairRules


class ExecutorLost(NamedTuple):
    """The executor is gone, or began a new life: nothing is computed until its `Geometry` comes."""


class ExecutorSilent(NamedTuple):
    """Nothing is heard of the executor, which may live: nothing is computed until its `Geometry` comes."""


class ExecutorReturned(NamedTuple):
    """The executor lives, but messages to or from it were lost: nothing is computed until its `Geometry` comes."""


EventBody = (
    Submit
    | Withdraw
    | Ended
    | Resend
    | Progress
    | Geometry
    | StepDone
    | StepFailed
    | Inventory
    | AdmissionJoined
    | TimePassed
    | PolicyChanged
    | ExecutorLost
    | ExecutorSilent
    | ExecutorReturned
)


class SchedulerEvent(NamedTuple):
    """Something that happened at `now_ns`, on a clock that never runs backwards."""

    now_ns: int
    body: EventBody


class RequestPhase(IntEnum):
    """What a stream is doing, as traces and the live view show it."""

    QUEUED = 1
    PREFILLING = 2
    DECODING = 3
    ENDED = 4


class StreamPhaseChanged(NamedTuple):
    """A stream entered another phase at `at_ns`. decision: why, when it was the scheduler's choice; else empty."""

    stream: Stream
    phase: RequestPhase
    at_ns: int
    traceparent: str
    output_tokens: int = 0
    decision: str = ""


SchedulerReply = TokenRun | Reclaimed | Spent | StreamPhaseChanged
