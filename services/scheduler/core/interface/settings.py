"""The settings of the scheduler's core, fixed at its start."""

from dataclasses import dataclass, field

from noria.services.scheduler.core.interface.traffic_rules import FairRules


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits of a step, of the queue and of what runs ahead; the names stand in event logs."""

    # Name of the policy, and the classes and tenants that it shares between, if it does.
    policy: str = "fifo"
    rules: FairRules = field(default_factory=FairRules)
    # Query tokens in a step, at most.
    max_batch_tokens: int = 512
    # Requests in a step, and slots.
    max_requests_per_batch: int = 64
    # Cached tokens read in a step; None without limit. One slice is always allowed.
    max_cache_tokens: int | None = None
    # Steps sent and not done, at most.
    steps_in_flight: int = 2
    # Share of the blocks that new prefills leave to running requests; None takes the policy's own.
    safety_margin: float | None = None
    # Bounds of the waiting queue.
    queue_requests_max: int = 4096
    queue_tokens_max: int = 4_000_000
    # Output tokens that a stream with stop strings may be planned ahead of the detokenizer.
    stop_lookahead: int = 4
    # Whether streams of one salt share the pages of equal prefixes.
    allow_block_sharing: bool = True
    # Prompt tokens in a step; None is what the executor advises.
    prefill_tokens: int | None = None
    # How long nothing is planned while an executor that still holds streams, or admission, has yet to name them.
    adoption_wait_ns: int = 10_000_000_000
