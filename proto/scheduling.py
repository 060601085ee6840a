"""Messages between admission and scheduler: submissions, withdrawals, capacity, costs, suspicions."""

import msgspec

from noria.proto.base import End, Ended, Stream
from noria.proto.sampling import Sampling


class Doubt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Why a stream is suspected of making steps fail: it was in one that failed, when it had `output_tokens` tokens.

    One token more clears it.

    group: suspects that run together have one number. failures_alone: how often it then failed with nobody beside it.
    """

    group: int
    failures_alone: int
    output_tokens: int


class Submission(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One accepted stream with all that the scheduler needs: `output_ids` is not empty when it is submitted again after a loss.

    sampling: with seed and max_tokens fixed. end_ids: token ids that end it (end of sequence unless ignored, and the
    stop token ids). has_stop_strings: never plan it more than a few tokens ahead of the detokenizer's `Progress`.
    ttl_first_ms, ttl_ms: what is left of each, from the moment this frame is written; the receiver counts from
    receipt. seniority_ms: how long ago it was accepted. service: tokens charged to it so far.
    salt: keeps tenants' cached prefixes apart. doubt: an earlier scheduler suspected it.
    """

    stream: Stream
    attempt: int
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    end_ids: tuple[int, ...] = ()
    has_stop_strings: bool = False
    output_ids: tuple[int, ...] = ()
    tenant: str = ""
    traffic_class: str = ""
    salt: bytes = b""
    ttl_first_ms: int | None = None
    ttl_ms: int | None = None
    seniority_ms: int = 0
    service: float = 0.0
    traceparent: str = ""
    doubt: Doubt | None = None


class Submit(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Schedule these streams. A stream already known with the same attempt is ignored.

    complete: every unfinished stream has been named since the scheduler joined; whatever else it knows has ended.
    """

    submissions: tuple[Submission, ...]
    complete: bool = False


class Withdraw(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Stop scheduling these streams: waiting ones leave at once, running ones at the next step boundary."""

    streams: tuple[Stream, ...]
    end: End = End.CANCELLED


class Reclaimed(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A withdrawn or ended stream has given back its last block.

    `steps` is the number of steps begun between receipt of the withdrawal and the release (at most two without a copy
    in flight), `delay_us` the time between them.
    """

    stream: Stream
    blocks: int
    steps: int
    delay_us: int


class Reclaims(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Scheduler to admission: the streams whose cache blocks became free in one step."""

    entries: tuple[Reclaimed, ...]


class Spent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The total cost of a stream, sent once when it is forgotten and no step touches it any more.

    computed_tokens: query tokens computed for it, again after preemptions included. wasted_tokens: those of them that
    were computed after its end and thrown away. block_us: cache blocks held, times microseconds; a shared block counts
    for each stream that holds it. tenant, traffic_class: whose it was, for an admission that has forgotten it.
    """

    stream: Stream
    computed_tokens: int
    wasted_tokens: int
    block_us: int
    tenant: str = ""
    traffic_class: str = ""


class Expenses(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All `Spent` of one turn, numbered from `first` on in the life of a scheduler.

    Entries that are not `Accounted` are sent again to an admission that joins; by their numbers it drops those that it has.
    """

    entries: tuple[Spent, ...]
    first: int = 0


class Accounted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Admission has recorded the expenses of scheduler incarnation `life` up to `number`; they need not be sent again."""

    life: int
    number: int


class Suspect(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A suspected stream and the reason."""

    stream: Stream
    doubt: Doubt


class Suspected(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All streams that the scheduler suspects of killing the executor or failing steps; it replaces the list sent before."""

    entries: tuple[Suspect, ...]


class StepTime(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The step-time model: microseconds per step, per query token, per cached token read, per request, and per pair.

    A pair is a token of a prompt's chunk and a cached token that it looks at: what long prompts cost more towards their end.
    """

    base_us: float = 0.0
    query_token_us: float = 0.0
    cache_token_us: float = 0.0
    request_us: float = 0.0
    pair_us: float = 0.0


class ClassCapacity(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Credit of one class: how many more requests and prompt tokens may be submitted; the predicted wait of the next.

    The entry without a name stands for all classes together. request_ms, token_ms: how much later the next one starts
    for each stream, and each prompt token, that is submitted before it. margin: how far a wait has exceeded its
    prediction lately in all but one case in five, as a factor.
    """

    traffic_class: str
    requests: int
    tokens: int
    start_ms: float = 0.0
    request_ms: float = 0.0
    token_ms: float = 0.0
    margin: float = 1.0


class Capacity(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How much more the scheduler takes, and how fast it is; sent at `Hello`, when credit changes, and regularly.

    Credit counts all submissions up to and including number `submitted`.

    `submitted` is how many submissions the scheduler has taken from admission's present incarnation, so that
    admission can subtract those still on the way.
    `largest_tokens` is the longest prompt and output together that the cache could ever hold.
    step_ms: how long steps have taken lately, on average. prefill_tokens, prefill_step_ms: how many tokens of a prompt
    such a step takes beside what continues, and how long it then takes.
    """

    submitted: int
    classes: tuple[ClassCapacity, ...]
    step_time: StepTime = StepTime()
    largest_tokens: int = 0
    ready: bool = False
    step_ms: float = 0.0
    prefill_tokens: int = 0
    prefill_step_ms: float = 0.0


ADMISSION_TO_SCHEDULER = (Submit, Withdraw, Ended, Accounted)
SCHEDULER_TO_ADMISSION = (Capacity, Reclaims, Expenses, Suspected)
