"""The events that the shell passes to the core, and the output that it takes back."""

from dataclasses import dataclass

from noria.proto.base import End, Service
from noria.proto.frontdoor import (
    Acknowledge,
    Attach,
    Cancel,
    Code,
    Describe,
    Generate,
    Identify,
    Inquire,
    Message,
    Ping,
    Preview,
)
from noria.proto.output import Texts, Unknown
from noria.proto.scheduling import Capacity, Expenses, Reclaims, Suspected
from noria.services.admission.core.state.outbox import ToDetokenizer, ToScheduler
from noria.services.admission.core.tenants.tenant_policy import TenantPolicy

FromClient = Generate | Attach | Cancel | Acknowledge | Describe | Ping | Preview | Identify | Inquire


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A client's message. For a `Generate`: digest is of its encoded body, seed is for a request that gives none.

    traceparent: in whose trace it is; within: the context of what is done before it is answered.
    """

    client: str
    incarnation: int
    body: FromClient
    now_ns: int
    digest: bytes = b""
    seed: int = 0
    traceparent: str = ""
    within: str = ""


@dataclass(frozen=True, slots=True)
class PromptTokenized:
    """The tokenizer is done with request `number`: its prompt ids, or what was wrong with it."""

    number: int
    now_ns: int
    ids: tuple[int, ...] = ()
    problem: str = ""
    parameter: str = ""
    code: Code = Code.INVALID


@dataclass(frozen=True, slots=True)
class PeerMessage:
    """A message of the scheduler or the detokenizer. life: the incarnation that sent it."""

    body: Capacity | Reclaims | Expenses | Suspected | Texts | Unknown
    now_ns: int
    life: int = 0


@dataclass(frozen=True, slots=True)
class PeerJoined:
    """A peer has started, or has reconnected and needs everything again."""

    peer: Service


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A peer has been silent for too long and counts as dead."""

    peer: Service


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """A request to drain: nothing more is accepted, and what is unfinished at `until_ns` is shed."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class ClockTick:
    """The present time, in monotonic nanoseconds: whatever is overdue is ended."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class TenancyChanged:
    """The configuration was read again: other classes or tenants from now on."""

    policy: TenantPolicy
    now_ns: int


AdmissionEvent = (
    ClientMessage | PromptTokenized | PeerMessage | PeerJoined | PeerLost | DrainRequested | TenancyChanged | ClockTick
)


@dataclass(frozen=True, slots=True)
class TokenizeJob:
    """Text to be tokenized: a prompt, or messages to be rendered first. Each `owner` gets a fair share of the work."""

    number: int
    owner: str
    characters: int
    prompt: str | None
    messages: tuple[Message, ...] | None
    traceparent: str


@dataclass(frozen=True, slots=True)
class AcceptedLogEntry:
    """For the log: a request was accepted. `client` is who sent it first."""

    client: str
    id: str
    number: int
    prompt_tokens: int
    choices: int
    tenant: str = ""
    traffic_class: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class RefusedLogEntry:
    """For the log: a request was refused."""

    client: str
    id: str
    code: Code
    parameter: str
    tenant: str = ""
    traffic_class: str = ""


@dataclass(frozen=True, slots=True)
class AttachedLogEntry:
    """For the log: a client took over a request.

    awaited: it is the client that sent it first, and the first sending is not answered yet.
    """

    client: str
    id: str
    number: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class EndedLogEntry:
    """For the log: a choice ended; `number` names its request. One that was never accepted has no choices."""

    client: str
    id: str
    number: int
    choice: int
    end: End
    prompt_tokens: int
    output_tokens: int
    total_ns: int
    detail: str
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class RecoveredLogEntry:
    """For the log: a request came back from the journal with so many streams that have not ended."""

    id: str
    number: int
    unfinished: int


RequestLogEntry = AcceptedLogEntry | RefusedLogEntry | AttachedLogEntry | EndedLogEntry | RecoveredLogEntry


@dataclass(frozen=True, slots=True)
class AdmissionOutput:
    """Messages to peers, tokenizer jobs and log entries of one turn. Messages to clients come from `ClientDelivery`."""

    scheduler: list[ToScheduler]
    detokenizer: list[ToDetokenizer]
    jobs: list[TokenizeJob]
    abandoned: list[int]
    log_entries: list[RequestLogEntry]
