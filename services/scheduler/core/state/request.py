"""A request as the scheduler sees it: one stream of tokens, in facets that each have one writer.

    WAITING ──admitted──▶ PREFILLING ──all known ids planned──▶ DECODING ──last token planned──▶ DRAINING
       ▲                      │                                    │                                │
       └───────────── preempted, or the executor began anew ──────┴────────────────────────────────┤
                                                                                                    ▼
    any of them ── end reached, deadline, error ──▶ FINISHED ── admission says `Ended` ──▶ GONE ◀── withdrawn

The rooms of the core write these facets, and nothing else of a request: `handlers` the progress, `step` the planned work and the
life, `state` the cache (`CacheMemory`) and the suspicion (`Suspects`), `policy` the billing. Positions count prompt and output
tokens from 0.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from noria.proto.base import End, Stream, TokenLogprob
from noria.proto.scheduling import Submission
from noria.services.scheduler.core.cache.request_blocks import HostBlocks, Prefix, RequestBlocks


class RequestStatus(IntEnum):
    """Where a request is, as drawn above."""

    # It has no slot: it has never had one, was preempted, or lost its cache.
    WAITING = 1
    # It has a slot, and ids that are known and not planned yet.
    PREFILLING = 2
    # It has a slot and continues token by token.
    DECODING = 3
    # All that it may generate is planned: its slot is free already, results are awaited.
    DRAINING = 4
    # Its end was proposed; its ids are kept until `Ended`.
    FINISHED = 5
    # Forgotten, though steps in flight may still hold slices of it.
    GONE = 6


@dataclass(frozen=True, slots=True, eq=False)
class RequestInput:
    """What was asked for. Never changes."""

    # As admission wrote it.
    submission: Submission
    # Orders requests by age, least first: nanoseconds, then the number of the request.
    seniority: tuple[int, int]
    # When it was received, in nanoseconds.
    received_ns: int
    # Until when its first token, and its end, must be there; None without a limit.
    deadline_first_ns: int | None
    deadline_ns: int | None
    # Length of the prompt.
    prompt_tokens: int
    # Ids that end it once `min_tokens` are out.
    end_ids: frozenset[int]
    min_tokens: int
    # Whether the detokenizer looks for stop strings, so that it may not run far ahead of it.
    has_stop_strings: bool


@dataclass(slots=True, eq=False)
class OutputProgress:
    """What is known of the output. Written by the handlers of what peers say."""

    # All output ids so far, those of earlier lives included.
    output: list[int]
    # How many of them the detokenizer has looked at.
    seen: int
    # Log-probabilities of the ids sampled in this life; empty unless asked for.
    logprobs: list[TokenLogprob] = field(default_factory=list)
    # Output tokens after which it ends by length; 0 until it was measured.
    limit: int = 0
    # Slices whose result came, or never will.
    results: int = 0
    # The admission whose first token was announced; -1 for none.
    announced_admission: int = -1
    # Query tokens computed for it, and of them after its end, for nothing.
    computed_tokens: int = 0
    wasted_tokens: int = 0
    # The wait for its start as predicted at receipt, in nanoseconds; 0 for none.
    foreseen_ns: int = 0


@dataclass(slots=True, eq=False)
class PlannedWork:
    """How far it is planned. Written by the room `step`."""

    # Output tokens known, or awaited from steps in flight.
    outputs: int
    # Positions computed or planned.
    length: int = 0
    # Positions whose ids the executor was given when the slot was filled; later ones it carries itself.
    filled: int = 0
    # Positions that had been computed when its cache was lost.
    computed: int = 0
    # Slices sent, and the number of the newest step with one.
    slices: int = 0
    last_step: int = 0
    # `outputs` when it was last given a slot.
    outputs_at_slot: int = 0
    # `outputs` when it was last preempted; -1 before that.
    preempted_at: int = -1


@dataclass(slots=True, eq=False)
class CacheUse:
    """What it holds of the cache. Written by `CacheMemory`."""

    # Its block tables while it has a slot; None without one.
    blocks: RequestBlocks | None = None
    # Positions that these tables can hold.
    room: int = 0
    # Its ids in pages; None until first asked for, and after another executor came.
    prefix: Prefix | None = None
    # Its cache on the host while it waits; None if it was not swapped out.
    host: HostBlocks | None = None
    # Units that its admission counted on for known tokens and that are not allocated yet.
    promised: int = 0
    # Prompt tokens that were in the cache when it was first admitted.
    cached_tokens: int = 0
    # Since when it holds cache (nanoseconds), and how many blocks it held then.
    since_ns: int = 0
    since_blocks: int = 0
    # Blocks times microseconds of what it held before.
    block_us: int = 0
    # Whether it was accepted before so much was kept for isolated classes, and may use that.
    oversized: bool = False


@dataclass(slots=True, eq=False)
class Billing:
    """What it was charged. Written by the policy, which may keep more; a policy without accounts charges nothing."""

    # Rank of its class; 0 where classes have none.
    rank: int = 0
    # Whether it is of an isolated class, and may use what is kept for these.
    isolated: bool = False
    # Prompt positions and output tokens charged, each once.
    paid_prompt: int = 0
    paid_output: int = 0
    # Of these, what was not charged to its present account.
    prompt_before: int = 0
    output_before: int = 0
    # When it last let others go first (nanoseconds); 0 for never.
    rotated_ns: int = 0

    def may_wait_for(self, other: "Billing") -> bool:
        """Whether the other request is served no later than this one, so that this one may wait for its prefix."""
        del other
        return True


@dataclass(slots=True, eq=False)
class Suspicion:
    """Whether it may have killed the executor. Written by `Suspects`."""

    # It was in what failed, and has made no token since.
    suspected: bool = False
    # How often it failed alone without a token in between.
    failures_alone: int = 0
    # How many output tokens it had when it failed.
    suspected_at: int = 0


@dataclass(slots=True, eq=False)
class RequestLife:
    """When it began, how it ended. Written by the room `step`."""

    # When its first step was planned (nanoseconds); None before.
    started_ns: int | None = None
    # Microseconds from receipt to then; 0 before.
    queue_us: int = 0
    # How often it was given a slot.
    admissions: int = 0
    # Its end as proposed, and what it says about it; None while it goes on.
    end: End | None = None
    detail: str = ""
    # When it was withdrawn while steps held it (nanoseconds), and how many steps were done then; None if it was not.
    withdrawn_ns: int | None = None
    withdrawn_step: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """One stream: who it is, where it is, and its facets."""

    # Which stream, and which attempt at it.
    stream: Stream
    attempt: int
    asked: RequestInput
    progress: OutputProgress
    work: PlannedWork
    # Written by the room `step`: its state, and its slot, -1 without one.
    state: RequestStatus = RequestStatus.WAITING
    slot: int = -1
    cache: CacheUse = field(default_factory=CacheUse)
    billing: Billing = field(default_factory=Billing)
    suspicion: Suspicion = field(default_factory=Suspicion)
    life: RequestLife = field(default_factory=RequestLife)

    @property
    def known(self) -> int:
        """How many ids are known: prompt and output."""
        return self.asked.prompt_tokens + len(self.progress.output)

    @property
    def in_flight(self) -> int:
        """How many steps in flight hold a slice of it."""
        return self.work.slices - self.progress.results

    @property
    def exempt(self) -> bool:
        """Whether it may use what is kept for isolated classes."""
        return self.billing.isolated or self.cache.oversized

    @property
    def immune(self) -> bool:
        """Whether it has been preempted and not made a token since."""
        return self.work.preempted_at >= 0 and len(self.progress.output) <= self.work.preempted_at

    @property
    def natural_end(self) -> End | None:
        """The end that its output so far proposes: an end id once `min_tokens` are out, else its length."""
        output, asked = self.progress.output, self.asked
        if output and output[-1] in asked.end_ids and len(output) >= asked.min_tokens:
            return End.STOP
        return End.LENGTH if len(output) >= self.progress.limit else None

    def logprobs_from(self, start: int) -> tuple[TokenLogprob, ...]:
        """The log-probabilities of the output ids from a position on; empty unless asked for, or when an earlier scheduler sampled them."""
        logprobs = self.progress.logprobs
        first = len(self.progress.output) - len(logprobs)
        return tuple(logprobs[start - first :]) if logprobs and start >= first else ()


def make_request(submission: Submission, now_ns: int, number: int) -> Request:
    """Begin a request from its submission, the `number`-th ever taken."""
    output = list(submission.output_ids)
    return Request(
        stream=submission.stream,
        attempt=submission.attempt,
        asked=RequestInput(
            submission=submission,
            seniority=(now_ns - submission.seniority_ms * 1_000_000, number),
            received_ns=now_ns,
            deadline_first_ns=_deadline(now_ns, submission.ttl_first_ms),
            deadline_ns=_deadline(now_ns, submission.ttl_ms),
            prompt_tokens=len(submission.prompt_ids),
            end_ids=frozenset(submission.end_ids),
            min_tokens=submission.sampling.min_tokens,
            has_stop_strings=submission.has_stop_strings,
        ),
        progress=OutputProgress(output=output, seen=len(output)),
        work=PlannedWork(outputs=len(output)),
    )


def _deadline(now_ns: int, ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else now_ns + ttl_ms * 1_000_000
