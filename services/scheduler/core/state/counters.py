"""Counters of what has happened since the scheduler's start."""

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerCounters:
    """What has happened since the start. Users know these names from `/debug/state`.

    wasted_tokens: query tokens computed for slices that were discarded.
    prompt_tokens: of requests when first admitted, each counted once, and hit_tokens those of them found in the cache;
    hits after a preemption are recovered_tokens. resets, swaps_out: preemptions; reset_tokens: positions whose cache was
    given up; recomputed_tokens: positions computed again. evictions: cached pages given up. adopted: streams whose cache
    was taken over from an earlier scheduler, adopted_tokens: positions of it.
    """

    steps: int = 0
    tokens: int = 0
    output_tokens: int = 0
    resets: int = 0
    reset_tokens: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    recovered_tokens: int = 0
    evictions: int = 0
    merged_pages: int = 0
    swaps_out: int = 0
    swaps_in: int = 0
    swapped_blocks: int = 0
    discarded_slices: int = 0
    wasted_tokens: int = 0
    failed_steps: int = 0
    adopted: int = 0
    adopted_tokens: int = 0
    reclaims: int = 0
    reclaim_us_total: int = 0
    reclaim_us_max: int = 0
    reclaim_steps_max: int = 0
