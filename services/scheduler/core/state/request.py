"""One stream as the scheduler sees it: what is known, what is planned, what it holds. It decides nothing."""

from dataclasses import dataclass, field
from enum import IntEnum

from noria.proto.base import End, Stream, TokenLogprob
from noria.proto.scheduling import Submission
from noria.services.scheduler.core.cache.host_pool import HostBlocks
from noria.services.scheduler.core.cache.pages import Prefix
from noria.services.scheduler.core.cache.request_blocks import RequestBlocks
from noria.services.scheduler.core.policy.service_accounts import ServiceAccount


class RequestState(IntEnum):
    """Where a request is.

    DRAINING: everything it may generate is planned; only results are awaited, its slot is free already.
    FINISHED: its end was proposed; its ids are kept until `Ended`. GONE: forgotten, perhaps still in a step in flight.
    """

    WAITING = 1
    PREFILLING = 2
    DECODING = 3
    DRAINING = 4
    FINISHED = 5
    GONE = 6


@dataclass(slots=True, eq=False)
class Request:
    """A stream with its progress; positions count prompt and output tokens from 0.

    seniority: orders requests by age, least first, and is never changed.
    limit: output tokens after which it ends by length. planned: output tokens known or awaited from steps in flight.
    length: positions computed or planned. filled: positions whose ids the executor was given when the slot was filled;
    later ones it carries itself. held: its cache while it has a slot; room: positions that its tables can hold.
    prefix: its ids in pages. stored: its cache on the host while it waits, if it was swapped out.
    promised: units of the cache for known tokens that admission counted on and that are not allocated yet.
    computed: positions that had been computed when its cache was lost. cached_tokens: prompt tokens that were in the
    cache when it was first admitted.
    in_flight: steps in flight with a slice of it, `last_step` the newest of them.
    seen: output tokens the detokenizer has looked at. preempted_at: `planned` when last preempted, -1 before that.
    suspected: it was in what failed when it had made `suspected_at` tokens, and has made no more since; failures_alone: how
    often nobody else was.
    deadline_first_ns, deadline_ns: until when its first token, and its end, must be there. foreseen_ns: the wait for its
    start as predicted at receipt.
    withdrawn_ns: when it was withdrawn while steps held it.
    spent, wasted: query tokens computed for it, and for nothing after its end. held_ns, held_blocks: since when it holds
    cache, and how much it held then; block_us: blocks times microseconds of earlier holdings.
    account, rank: whose it is, and the rank of its class, where the policy shares. exempt: it may use what is kept for
    isolated classes. paid_prompt, paid_output: prompt positions and output tokens charged, each once; prompt_before,
    output_before: those of them that were not charged to this account. slot_planned: `planned` when it was last given a
    slot. rotated_ns: when it last let others go first, 0 for never.
    likelihoods: of the output ids sampled in this life, if it asks for them; nothing here looks into them.
    """

    submission: Submission
    stream: Stream
    attempt: int
    seniority: tuple[int, int]
    received_ns: int
    deadline_first_ns: int | None
    deadline_ns: int | None
    prompt_tokens: int
    output: list[int]
    end_ids: frozenset[int]
    min_tokens: int
    has_stop: bool
    seen: int
    state: RequestState = RequestState.WAITING
    limit: int = 0
    slot: int = -1
    planned: int = 0
    length: int = 0
    filled: int = 0
    room: int = 0
    held: RequestBlocks | None = None
    prefix: Prefix | None = None
    stored: HostBlocks | None = None
    promised: int = 0
    computed: int = 0
    cached_tokens: int = 0
    in_flight: int = 0
    last_step: int = 0
    preempted_at: int = -1
    suspected: bool = False
    failures_alone: int = 0
    suspected_at: int = 0
    started_ns: int | None = None
    foreseen_ns: int = 0
    decoding_shown: bool = False
    end: End | None = None
    detail: str = ""
    withdrawn_ns: int | None = None
    withdrawn_step: int = field(default=0)
    spent: int = 0
    wasted: int = 0
    held_ns: int = 0
    held_blocks: int = 0
    block_us: int = 0
    account: ServiceAccount | None = None
    rank: int = 0
    exempt: bool = False
    prompt_before: int = 0
    output_before: int = 0
    paid_prompt: int = 0
    paid_output: int = 0
    slot_planned: int = 0
    rotated_ns: int = 0
    likelihoods: list[TokenLogprob] = field(default_factory=list)

    @property
    def known(self) -> int:
        """How many ids are known: prompt and output."""
        return self.prompt_tokens + len(self.output)

    def likelihoods_from(self, start: int) -> tuple[TokenLogprob, ...]:
        """Those of the output ids from a position; empty where they are not asked for, or older than this life."""
        first = len(self.output) - len(self.likelihoods)
        return tuple(self.likelihoods[start - first :]) if self.likelihoods and start >= first else ()

    @property
    def immune(self) -> bool:
        """Whether it has been preempted and not made a token since."""
        return self.preempted_at >= 0 and len(self.output) <= self.preempted_at

    @property
    def queue_us(self) -> int:
        """Microseconds from receipt to its first step; 0 before."""
        return 0 if self.started_ns is None else (self.started_ns - self.received_ns) // 1000


def make_request(submission: Submission, now_ns: int, number: int) -> Request:
    """Begin a request from its submission, the `number`-th ever taken."""
    output = list(submission.output_ids)
    return Request(
        submission=submission,
        stream=submission.stream,
        attempt=submission.attempt,
        seniority=(now_ns - submission.seniority_ms * 1_000_000, number),
        received_ns=now_ns,
        deadline_first_ns=_deadline(now_ns, submission.ttl_first_ms),
        deadline_ns=_deadline(now_ns, submission.ttl_ms),
        prompt_tokens=len(submission.prompt_ids),
        output=output,
        end_ids=frozenset(submission.end_ids),
        min_tokens=submission.sampling.min_tokens,
        has_stop=submission.has_stop_strings,
        seen=len(output),
        planned=len(output),
    )


def _deadline(now_ns: int, ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else now_ns + ttl_ms * 1_000_000


def natural_end(request: Request) -> End | None:
    """The end that its output so far proposes: an end id once `min_tokens` are out, else its length."""
    output = request.output
    if output and output[-1] in request.end_ids and len(output) >= request.min_tokens:
        return End.STOP
    return End.LENGTH if len(output) >= request.limit else None
