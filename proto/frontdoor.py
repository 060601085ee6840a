"""Messages between clients and admission, on the public mailbox.

A request is named by the client's own id within its tenant. Everything sent about one client's streams in one step is
one `Updates` message.
"""

from enum import StrEnum
from typing import Final

import msgspec

from noria.proto.base import End, Logprobs
from noria.proto.sampling import Sampling

REQUEST_ID_CHARACTERS_MAX: Final = 128
"""The longest name that a request may have."""


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One turn of a chat."""

    role: str
    content: str


class Generate(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Start a generation, or attach to it when the same id with the same body is alive.

    Exactly one of `prompt`, `messages` and `token_ids` is given. `model` may be empty for the served one.
    `ttl_first_ms` and `ttl_ms` bound the time to the first token and to the end, counted from receipt.
    `credential`: an API key; it says whose the request is. `traffic_class` names one of the classes its tenant may use;
    empty for the tenant's own choice.
    `keep`: `id` is an idempotency key: the answer is kept for a repetition even when it was acknowledged.
    `background`: it goes on to its end without any reader, and its answer is kept for one until the retention time is over.
    `grace_ms`: how long it goes on once its client has fallen silent, or has left it where `keep` lets it; the server's own
    patience where absent. With `keep` a client's silence does not end it.
    """

    id: str
    model: str = ""
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    n: int = 1
    credential: str = ""
    traffic_class: str = ""
    ttl_first_ms: int | None = None
    ttl_ms: int | None = None
    keep: bool = False
    background: bool = False
    grace_ms: int | None = None


class Preview(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Ask for the `Forecast` of a request, which is not made. Its id names the question and is used for nothing else."""

    request: Generate


class Identify(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Ask for the tenant and classes of a credential. `id` names the question."""

    id: str
    credential: str


class Inquire(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Ask for the `Standing` of a request of the same tenant, without taking its streams over. `id` names the question."""

    id: str
    request: str
    credential: str = ""


class Have(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How much a re-attaching client already has of one choice: `ids` tokens and `characters` of text of `attempt`."""

    index: int
    attempt: int = 0
    ids: int = 0
    characters: int = 0


class Attach(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Take over the streams of a request that is alive or retained; the newest attachment owns them."""

    id: str
    have: tuple[Have, ...] = ()
    credential: str = ""


class Cancel(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Stop a request, or one choice of it. Unknown ids are ignored: the end may have crossed this on the way.

    left: nobody reads any more, but somebody may come back: a request with `keep` goes on for a while without a reader,
    one with `background` to its end. Without `left`, whoever has the credential ends a background request, read or not.
    """

    id: str
    index: int | None = None
    credential: str = ""
    left: bool = False


class Acknowledge(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The client has the end of these requests; admission may forget them."""

    ids: tuple[str, ...]


class Describe(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Ask for the `Description`: which models are served and whether the stack is ready."""


class Ping(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A sign of life from a client with open streams; any other message is one too."""


class Code(StrEnum):
    """Why a request was refused; the gateway maps each to one HTTP status."""

    INVALID = "invalid"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_LENGTH = "context_length"
    CONFLICT = "conflict"
    NOT_FOUND = "not_found"
    UNSUPPORTED = "unsupported"
    OVERLOADED = "overloaded"
    QUOTA = "quota"
    NOT_READY = "not_ready"
    UNAUTHORIZED = "unauthorized"
    DEADLINE = "deadline"
    INTERNAL = "internal"


class Accepted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The request is in the ledger and will not be lost. `request` is admission's own number for it.

    A client that is silent for `peer_timeout_ms` is taken for gone; 0 leaves it open.
    """

    id: str
    request: int
    prompt_tokens: int
    model: str
    seed: int
    attempt: int = 0
    peer_timeout_ms: int = 0


class Rejected(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The request was not accepted: what was wrong (`reason`), where (`parameter`), and when to try again."""

    id: str
    code: Code
    reason: str
    parameter: str = ""
    retry_after_ms: int | None = None


class Forecast(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Whether and when a request would be served, by the scheduler's state as last known; nothing is promised.

    When it would be admitted: milliseconds until its first step, first token and end, the end for as many tokens as
    are expected of it (`output_tokens`, its `max_tokens` at most). Else `code`, `reason` and so on, as in `Rejected`.
    """

    id: str
    admitted: bool
    traffic_class: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    start_ms: float = 0.0
    first_token_ms: float = 0.0
    finish_ms: float = 0.0
    code: Code | None = None
    reason: str = ""
    parameter: str = ""
    retry_after_ms: int | None = None


class Identified(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The tenant of a credential and the classes that it may use. An unknown credential is answered by `Rejected`."""

    id: str
    tenant: str
    classes: tuple[str, ...]
    default_class: str


class Standing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The progress of a request: tokens and end of each choice so far. A request that is not known is answered by `Rejected`.

    ends: an `End` for each choice, 0 for those that run. stop: its stop strings. age_ms: since it was received.
    """

    id: str
    request: str
    background: bool
    age_ms: int
    model: str
    prompt_tokens: int
    output_tokens: tuple[int, ...]
    ends: tuple[int, ...]
    stop: tuple[str, ...] = ()


class Delta(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """New output of one choice: token ids from output position `start`, text from character position `characters`.

    Several steps' news may be merged into one delta for a slow reader; nothing is ever dropped.
    A higher `attempt` truncates the receiver to `start` and `characters`. logprobs: of each id, where asked for.
    """

    id: str
    index: int
    attempt: int
    start: int
    ids: tuple[int, ...]
    characters: int
    text: str
    logprobs: tuple[Logprobs, ...] = ()


class Timings(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Durations in milliseconds from acceptance: in the queue, to the first token, to the end."""

    queue_ms: float = 0.0
    first_token_ms: float = 0.0
    total_ms: float = 0.0


class Finished(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The end of one choice. `matched` is the stop string or the decimal stop token id that ended it, if one did."""

    id: str
    index: int
    end: End
    prompt_tokens: int
    output_tokens: int
    matched: str = ""
    detail: str = ""
    timings: Timings = Timings()
    cached_tokens: int = 0


class Updates(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All new output for one client in one step; a choice's `Finished` comes after its last delta."""

    deltas: tuple[Delta, ...] = ()
    finished: tuple[Finished, ...] = ()


class Description(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The models that are served. `waiting_for` names the services that are not there yet; empty means ready."""

    models: tuple[str, ...]
    max_model_tokens: int
    waiting_for: tuple[str, ...] = ()
    started_unix_s: int = 0
    has_chat_template: bool = False


class Pong(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The answer to `Ping`. A changed incarnation in its header tells a client to attach again."""


class Malformed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message of the client could not be decoded: the reason, and the kind that its header named."""

    kind: str
    reason: str


TO_ADMISSION = (Generate, Attach, Cancel, Acknowledge, Describe, Ping, Preview, Identify, Inquire)
TO_CLIENT = (Accepted, Rejected, Updates, Description, Pong, Malformed, Forecast, Identified, Standing)
