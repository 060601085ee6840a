"""The options of section `[scheduler]`."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from noria.shared.config.policies import PolicyName
from noria.shared.config.sections.flags import flags

BATCH_TOKENS: Final = 512
"""Query tokens that a step has room for where `scheduler.max_batch_tokens` is absent."""


class SchedulerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is in each step."""

    policy: Annotated[
        Literal["auto", PolicyName],
        Meta(
            description="Whose turn it is and who gives way; auto is fair once classes or tenants are configured.",
            extra=flags("--scheduler", "--scheduler-type"),
        ),
    ] = "auto"
    max_batch_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        Meta(
            description="Query tokens in a step, at most; where absent 512, of which prompts take what was measured to be best.",
            extra=flags("--max-batch-tokens", "--max-num-batched-tokens"),
        ),
    ] = None
    prefill_chunk_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | None,
        Meta(
            description="Prompt tokens in a step, at most; measured where this and max_batch_tokens are absent.",
            extra=flags("--prefill-chunk-tokens", "--chunked-prefill-size"),
        ),
    ] = None
    max_requests_per_batch: Annotated[
        int,
        Meta(
            description="Requests in a step, at most.",
            extra=flags("--max-requests-per-batch", "--max-num-seqs"),
            ge=1,
            le=4096,
        ),
    ] = 64
    max_cache_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Cached tokens read in a step, at most; unlimited where absent.",
            extra=flags("--max-cache-tokens"),
        ),
    ] = None
    steps_in_flight: Annotated[
        int,
        Meta(
            description="Steps sent to the executor ahead of results: 1 or 2.",
            extra=flags("--steps-in-flight"),
            ge=1,
            le=2,
        ),
    ] = 2
    prompt_price: Annotated[float, Meta(description="fair: what a computed prompt token counts.", ge=0, le=1000)] = 1.0
    cached_price: Annotated[
        float, Meta(description="fair: what a prompt token found in the cache counts.", ge=0, le=1000)
    ] = 0.1
    output_price: Annotated[float, Meta(description="fair: what an output token counts.", ge=0, le=1000)] = 2.0
    progress_tokens: Annotated[
        int, Meta(description="fair: output of a preempted request before it is preempted again.", ge=1)
    ] = 16
    safety_margin: Annotated[
        Annotated[float, Meta(ge=0, le=0.9)] | None,
        Meta(description="Share of blocks kept for running requests; 0 for prefill_first, else 0.15."),
    ] = None
    queue_requests_max: Annotated[
        int, Meta(description="Waiting requests accepted.", extra=flags("--max-queue-size"), ge=1)
    ] = 4096
    queue_tokens_max: Annotated[int, Meta(description="Prompt tokens of waiting requests accepted.", ge=1)] = 4_000_000
    tokens_interval_ms: Annotated[
        float,
        Meta(
            description="How long tokens of short steps are held back to be handed on together; 0 hands on each step's at once.",
            ge=0,
            le=1000,
        ),
    ] = 30.0
    event_log: Annotated[
        str,
        Meta(
            description="File that records events for `noria replay` and `noria why`; no text or token ids.",
            extra=flags("--event-log"),
        ),
    ] = ""
    event_log_bytes_max: Annotated[
        int, Meta(description="Size of the event log, the file before it included.", ge=1 << 16)
    ] = 1 << 28
