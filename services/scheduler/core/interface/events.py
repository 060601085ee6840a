"""What happens to the scheduler core, and what it answers.

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
    """An event that cannot have happened if everybody kept to the protocol; the core has not changed."""


class AdmissionJoined(NamedTuple):
    """Admission began a new life, or was missed: it names its streams anew, counted from zero."""


class TimePassed(NamedTuple):
    """Nothing but time: whoever is out of it ends."""


class PolicyChanged(NamedTuple):
    """The configuration was read again: this policy, with these classes and tenants, from now on."""

    policy: str
    rules: FairRules


class ExecutorLost(NamedTuple):
    """The executor is gone, or began a new life: nothing is computed until its `Geometry` comes."""


class ExecutorSilent(NamedTuple):
    """Nothing is heard of the executor, dead or alive: nothing is computed until its `Geometry` comes."""


class ExecutorReturned(NamedTuple):
    """The executor lives, but what was on its way to or from it was lost: as before, until its `Geometry` comes."""


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
    """Something happened at `now_ns`, on a clock that never runs backwards."""

    now_ns: int
    body: EventBody


class RequestPhase(IntEnum):
    """What a stream is doing, as its trace shows it."""

    QUEUED = 1
    PREFILLING = 2
    DECODING = 3
    ENDED = 4


class PhaseChanged(NamedTuple):
    """A stream entered another stage at `at_ns`. `decision` says why, when it was the scheduler's choice."""

    stream: Stream
    stage: RequestPhase
    at_ns: int
    traceparent: str
    output_tokens: int = 0
    decision: str = ""


SchedulerReply = TokenRun | Reclaimed | Spent | PhaseChanged
