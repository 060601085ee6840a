"""What several edges share: the header, the name of a stream, why it ended, how it samples.

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


class Sampling(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How one stream turns logits into tokens and when it ends. Also what the executor samples by.

    temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off. min_p: 0 is off.
    seed: None until admission fixes one; randomness is a function of (seed, position) alone.
    max_tokens: None until admission fills in the rest of the context.
    min_tokens: end-of-sequence and stop token ids are masked, and stop strings not looked for, before so many tokens.
    stop_token_ids: end the stream; the id is returned, its text is not unless `include_stop`.
    presence_penalty, frequency_penalty: subtracted from the logits of output tokens, once and per occurrence.
    repetition_penalty: divides positive logits of prompt and output tokens, multiplies the others; 1 is off.
    logit_bias: (id, what is added to its logit). logprobs: how many of the likeliest tokens to tell with each sampled
    one and its own log-probability; None is neither. reserved_1: a position on
    the wire that was once `grammar` and is never used again; whoever fills it is refused.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    reserved_1: str = ""


class Likelihood(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How likely a sampled token was to the model, before temperature, filters, penalties and bias.

    logprob: its natural log-probability. top: (id, log-probability) of the likeliest tokens, likeliest first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Alternative(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One of the likeliest tokens at a position: its id, the bytes that it stands for, its log-probability."""

    id: int
    token: bytes
    logprob: float


class Logprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`Likelihood` of an output token, to be read: with the bytes that it stands for, special or not.

    character: position in the stream's text at which its text begins. top: the likeliest tokens, likeliest first.
    """

    logprob: float
    token: bytes
    character: int
    top: tuple[Alternative, ...] = ()


class Ended(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Admission to scheduler and detokenizer: these streams have ended in the ledger; forget them, even if running."""

    streams: tuple[Stream, ...]
