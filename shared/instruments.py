"""Every span and metric name of the product, once, with unit and description."""

import enum
from dataclasses import dataclass
from typing import Final


class Kind(enum.Enum):
    """How a metric's numbers are to be read: COUNTER only grows while a process lives, GAUGE is a present state."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; units as in UCUM, things that are counted in braces."""

    name: str
    unit: str
    description: str
    kind: Kind


SPAN_HTTP: Final = "http"  # the gateway names it after method and route
SPAN_ADMIT: Final = "admit"
SPAN_TOKENIZE: Final = "tokenize"
SPAN_QUEUE: Final = "queue"
SPAN_PREFILL: Final = "prefill"
SPAN_DECODE: Final = "decode"
SPAN_STEP: Final = "step"
SPAN_STREAM: Final = "stream"

ATTRIBUTE_REQUEST: Final = "noria.request"
ATTRIBUTE_CHOICE: Final = "noria.choice"
ATTRIBUTE_END: Final = "noria.end"
ATTRIBUTE_DECISION: Final = "noria.decision"
ATTRIBUTE_STEP: Final = "noria.step"
ATTRIBUTE_QUERY_TOKENS: Final = "noria.query_tokens"
ATTRIBUTE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
ATTRIBUTE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ATTRIBUTE_REQUEST_MODEL: Final = "gen_ai.request.model"
ATTRIBUTE_RESPONSE_MODEL: Final = "gen_ai.response.model"
ATTRIBUTE_OPERATION: Final = "gen_ai.operation.name"
ATTRIBUTE_PROVIDER: Final = "gen_ai.provider.name"
ATTRIBUTE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"

ATTRIBUTE_GROUP: Final = "noria.group"  # an attention group's place in `Geometry.groups`
ATTRIBUTE_STATE: Final = "noria.state"
ATTRIBUTE_DIRECTION: Final = "noria.direction"

REQUESTS: Final = Metric("noria.requests", "{request}", "Requests in the scheduler, by state.", Kind.GAUGE)
CACHE_BLOCKS: Final = Metric("noria.cache.blocks", "{block}", "Cache blocks, by group and state.", Kind.GAUGE)
CACHE_PROMPT_TOKENS: Final = Metric(
    "noria.cache.prompt_tokens", "{token}", "Prompt tokens, each counted once when first admitted.", Kind.COUNTER
)
CACHE_HIT_TOKENS: Final = Metric(
    "noria.cache.hit_tokens", "{token}", "Those of the prompt tokens that were found in the cache.", Kind.COUNTER
)
CACHE_RECOVERED_TOKENS: Final = Metric(
    "noria.cache.recovered_tokens", "{token}", "Tokens found in the cache again after a preemption.", Kind.COUNTER
)
CACHE_RECOMPUTED_TOKENS: Final = Metric(
    "noria.cache.recomputed_tokens", "{token}", "Tokens computed again after a preemption.", Kind.COUNTER
)
CACHE_EVICTIONS: Final = Metric("noria.cache.evictions", "{page}", "Cached pages given up for others.", Kind.COUNTER)
CACHE_RESETS: Final = Metric(
    "noria.cache.resets", "{request}", "Requests preempted whose cache was given up.", Kind.COUNTER
)
CACHE_SWAPS: Final = Metric(
    "noria.cache.swaps", "{request}", "Requests moved to the host pool and back, by direction.", Kind.COUNTER
)
CACHE_SWAPPED_BLOCKS: Final = Metric(
    "noria.cache.swapped_blocks", "{block}", "Blocks of requests moved to the host pool.", Kind.COUNTER
)
ATTRIBUTE_TENANT: Final = "noria.tenant"
ATTRIBUTE_CLASS: Final = "noria.class"
ATTRIBUTE_CODE: Final = "noria.code"
STREAMS_ACCEPTED: Final = Metric("noria.streams.accepted", "{stream}", "Streams accepted, by tenant.", Kind.COUNTER)
STREAMS_ENDED: Final = Metric(
    "noria.streams.ended", "{stream}", "Accepted streams that ended, by tenant and reason.", Kind.COUNTER
)
REQUESTS_REFUSED: Final = Metric(
    "noria.requests.refused", "{request}", "Requests refused, by tenant and code.", Kind.COUNTER
)
USED_PROMPT_TOKENS: Final = Metric(
    "noria.used.prompt_tokens", "{token}", "Prompt tokens of requests that were begun.", Kind.COUNTER
)
USED_CACHED_TOKENS: Final = Metric(
    "noria.used.cached_tokens", "{token}", "Those of them that were found in the cache.", Kind.COUNTER
)
USED_OUTPUT_TOKENS: Final = Metric("noria.used.output_tokens", "{token}", "Tokens that clients got.", Kind.COUNTER)
USED_WASTED_TOKENS: Final = Metric(
    "noria.used.wasted_tokens", "{token}", "Query tokens computed after the end of their stream.", Kind.COUNTER
)
USED_CACHE: Final = Metric("noria.used.cache", "{block}.us", "Cache blocks held, times microseconds.", Kind.COUNTER)
RECLAIMS: Final = Metric(
    "noria.reclaims", "{stream}", "Streams that were running when they ended, whose blocks are back.", Kind.COUNTER
)
RECLAIM_DELAY: Final = Metric(
    "noria.reclaim.delay", "us", "Sum of the times from their end to the return of their last block.", Kind.COUNTER
)
ADMISSION_METRICS: Final = (
    STREAMS_ACCEPTED,
    STREAMS_ENDED,
    REQUESTS_REFUSED,
    USED_PROMPT_TOKENS,
    USED_CACHED_TOKENS,
    USED_OUTPUT_TOKENS,
    USED_WASTED_TOKENS,
    USED_CACHE,
    RECLAIMS,
    RECLAIM_DELAY,
)
SHARE_SERVICE: Final = Metric(
    "noria.share.service",
    "{token}",
    "What was planned, by price, class and tenant; less what was paid back.",
    Kind.GAUGE,
)
SHARE_COUNTER: Final = Metric(
    "noria.share.counter", "{token}", "Virtual token counters by class and tenant; the least goes first.", Kind.GAUGE
)
SHARE_WAITING: Final = Metric("noria.share.waiting", "{request}", "Waiting requests, by class and tenant.", Kind.GAUGE)
SCHEDULER_METRICS: Final = (
    SHARE_SERVICE,
    SHARE_COUNTER,
    SHARE_WAITING,
    REQUESTS,
    CACHE_BLOCKS,
    CACHE_PROMPT_TOKENS,
    CACHE_HIT_TOKENS,
    CACHE_RECOVERED_TOKENS,
    CACHE_RECOMPUTED_TOKENS,
    CACHE_EVICTIONS,
    CACHE_RESETS,
    CACHE_SWAPS,
    CACHE_SWAPPED_BLOCKS,
)
