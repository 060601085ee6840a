"""The options of section `[cache]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from noria.shared.config.sections.flags import flags


class CacheSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The paged key-value cache."""

    page_size: Annotated[
        int, Meta(description="Tokens in a page.", extra=flags("--page-size", "--block-size"), ge=1, le=1024)
    ] = 16
    num_blocks: Annotated[
        Annotated[int, Meta(ge=3)] | None,
        Meta(description="Chunks of the cache; sized from free memory where absent.", extra=flags("--num-blocks")),
    ] = None
    max_memory_percent: Annotated[
        float,
        Meta(
            description="Share of free memory that weights and cache may take.",
            extra=flags("--max-memory-percent", "--gpu-memory-utilization"),
            gt=0,
            le=1,
        ),
    ] = 0.6
    allow_block_sharing: Annotated[
        bool,
        Meta(
            description="Let requests with the same beginning share its cached blocks.",
            extra=flags("--allow-block-sharing", "--enable-prefix-caching"),
        ),
    ] = True
    cpu_offload_space: Annotated[
        float,
        Meta(
            description="GiB of host memory for the cache of preempted requests.",
            extra=flags("--cpu-offload-space"),
            ge=0,
        ),
    ] = 0.0
    cpu_offload_space_safety_threshold: Annotated[
        float,
        Meta(
            description="Share of free host memory that cpu_offload_space may take.",
            extra=flags("--cpu-offload-space-safety-threshold"),
            gt=0,
            le=1,
        ),
    ] = 0.8
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8"],
        Meta(
            description="Precision of cached keys and values; auto is the model's, fp8 (e4m3) is for GPUs.",
            extra=flags("--kv-cache-dtype"),
        ),
    ] = "auto"
