"""The settings of the scheduler's core, fixed at its start."""

from dataclasses import dataclass, field

from noria.services.scheduler.core.interface.traffic_rules import FairRules


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits of a step, of the queue and of what runs ahead.

    rules: classes and tenants, for `fair`. max_batch_tokens: query tokens in a step. prefill_tokens: prompt tokens in a step;
    None is what the executor advises. max_requests_per_batch: requests in a step, and slots.
    max_cache_tokens: cached tokens read in a step, None without limit; one slice is always allowed.
    safety_margin: share of blocks that new prefills leave to running requests; None takes the policy's own.
    allow_block_sharing: whether streams of one salt share the pages of equal prefixes.
    adoption_wait_ns: how long nothing is planned while an executor that still holds streams, or admission, has yet to name them.
    stop_lookahead: output tokens that a stream with stop strings may be planned ahead of the detokenizer.
    """

    policy: str = "fifo"
    rules: FairRules = field(default_factory=FairRules)
    max_batch_tokens: int = 512
    max_requests_per_batch: int = 64
    max_cache_tokens: int | None = None
    steps_in_flight: int = 2
    safety_margin: float | None = None
    queue_requests_max: int = 4096
    queue_tokens_max: int = 4_000_000
    stop_lookahead: int = 4
    allow_block_sharing: bool = True
    prefill_tokens: int | None = None
    adoption_wait_ns: int = 10_000_000_000
