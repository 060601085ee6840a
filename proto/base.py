"""What messages of several edges share: the header, names of services and streams, reasons of an end, log-probabilities.

Bodies are arrays on the wire. Fields are only ever appended, with defaults, and never reordered: an older decoder
ignores surplus trailing fields, a newer one fills in what is missing. A field that has gone leaves its position behind, as
`reserved_1`; the name of a message that has gone is not given to another one.
"""

from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec


class Service(StrEnum):
    """The processes of a stack. The value is the process's routing id and its name everywhere a person reads one."""

    GATEWAY = "gateway"
    ADMISSION = "admission"
    SCHEDULER = "scheduler"
    EXECUTOR = "executor"
    DETOKENIZER = "detokenizer"
    SUPERVISOR = "supervisor"


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The first frame of every message.

    `incarnation` is a random number that the sender drew when it started; `recipient` is the incarnation it believes
    it is writing to, or 0 when it knows none yet, which only lifecycle and front-door messages may say. ZeroMQ
    delivers mail for a killed process to its successor: what names another incarnation is dropped there.
    `sequence` counts the sender's messages to this recipient from 1; greetings have none, and a heartbeat repeats the
    number of the message before it, so that a loss shows. `traceparent` is W3C trace context or empty.
    """

    kind: str
    sender: str
    incarnation: int
    recipient: int = 0
    sequence: int = 0
    traceparent: str = ""


class Stream(NamedTuple):
    """One choice of one request: what the scheduler schedules and every message about tokens names.

    `request` is unique in the life of a journal and assigned by admission; `choice` counts its choices (0 to n - 1).
    """

    request: int
    choice: int


class End(IntEnum):
    """Why a stream ended. Each is distinct for the client."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    DEADLINE = 4
    SHED = 5
    ERROR = 6

    @property
    def label(self) -> str:
        """The name a client sees."""
        return self.name.lower()


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The log-probability of a sampled token, before temperature, filters, penalties and bias.

    logprob: natural logarithm. top: (id, log-probability) of the likeliest tokens, likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Alternative(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One of the likeliest tokens at a position: its id, the bytes that it stands for, its log-probability."""

    id: int
    token: bytes
    logprob: float


class Logprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The log-probability of an output token with the bytes that it stands for, special or not.

    character: position in the stream's text at which its text begins. top: the likeliest tokens, likeliest first.
    """

    logprob: float
    token: bytes
    character: int
    top: tuple[Alternative, ...] = ()


class Ended(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Admission to scheduler and detokenizer: these streams have ended in the ledger; forget them, even if running."""

    streams: tuple[Stream, ...]
