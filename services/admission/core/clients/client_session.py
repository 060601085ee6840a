"""The state of each client session: its attachments to requests, and what it has been sent of them."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from noria.proto.base import Stream
from noria.proto.frontdoor import Accepted, Description, Forecast, Identified, Pong, Rejected, Standing, Updates
from noria.services.admission.core.ledger.request import ChoiceRecord, Request

ClientAnswer = Rejected | Description | Pong | Forecast | Identified | Standing
ToClient = Accepted | ClientAnswer | Updates
RETRY_NS_MIN: Final = 5_000_000
RETRY_NS_MAX: Final = 160_000_000


@dataclass(slots=True, eq=False)
class DeliveryCursor:
    """What a client has been sent of one choice."""

    attempt: int = 0
    ids: int = 0
    characters: int = 0
    ended: bool = False


@dataclass(slots=True, eq=False)
class ClientAttachment:
    """A client's hold on a request until the end of every choice has been sent. No cursors before acceptance."""

    request: Request
    client: "ClientSession"
    cursors: list[DeliveryCursor] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ClientSession:
    """A connected client. `sequence` counts messages sent to it, so that it can notice a lost one.

    changed: streams with output or an end that it has not been sent.
    tenants: those whose credentials it has shown. unacknowledged: requests whose ends it was sent and has not
    acknowledged, the newest ones.
    """

    id: str
    incarnation: int
    heard_ns: int
    sequence: int = 0
    answers: deque[ClientAnswer] = field(default_factory=deque)
    unannounced: dict[int, ClientAttachment] = field(default_factory=dict)
    changed: dict[Stream, ClientAttachment] = field(default_factory=dict)
    attachments: dict[int, ClientAttachment] = field(default_factory=dict)
    tenants: set[str] = field(default_factory=set)
    unacknowledged: dict[str, None] = field(default_factory=dict)
    retry_ns: int = 0
    backoff_ns: int = RETRY_NS_MIN


@dataclass(frozen=True, slots=True)
class CursorAdvance:
    """The new values of one choice's cursor, which it takes when the message with its output has been sent."""

    attachment: ClientAttachment
    choice: ChoiceRecord
    cursor: DeliveryCursor
    attempt: int
    ids: int
    characters: int
    ended: bool


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """The next message for a client. Nothing changes until it is passed to `ClientDelivery.mark_sent`."""

    client: ClientSession
    body: ToClient
    announced: ClientAttachment | None = None
    advances: tuple[CursorAdvance, ...] = ()
