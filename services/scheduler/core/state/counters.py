"""Counters of what has happened since the scheduler's start."""

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerCounters:
    """What has happened since the start. Users know these names from `/debug/state`."""

    # Steps that were done, query tokens computed in them, and output tokens sampled and used.
    steps: int = 0
    tokens: int = 0
    output_tokens: int = 0
    # Preemptions whose cache was given up, and the positions of it.
    resets: int = 0
    reset_tokens: int = 0
    # Positions that were computed again.
    recomputed_tokens: int = 0
    # Prompt tokens of requests when first admitted, each counted once, and those of them found in the cache.
    prompt_tokens: int = 0
    hit_tokens: int = 0
    # Tokens found in the cache after a preemption.
    recovered_tokens: int = 0
    # Cached pages that were given up, and pages that turned out to be published already.
    evictions: int = 0
    merged_pages: int = 0
    # Preemptions whose cache went to the host, returns from there, and the blocks that went.
    swaps_out: int = 0
    swaps_in: int = 0
    swapped_blocks: int = 0
    # Slices whose request had ended when they were done, and the query tokens computed for them.
    discarded_slices: int = 0
    wasted_tokens: int = 0
    failed_steps: int = 0
    # Streams whose cache was taken over from an earlier scheduler, and the positions of it.
    adopted: int = 0
    adopted_tokens: int = 0
    # Withdrawn streams whose blocks are back, and how long that took: microseconds in all and at most, steps at most.
    reclaims: int = 0
    reclaim_us_total: int = 0
    reclaim_us_max: int = 0
    reclaim_steps_max: int = 0
