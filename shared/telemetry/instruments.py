"""Every metric of the product, once: name, unit, description, kind, attributes, buckets. Spans are in `spans`.

docs/telemetry.md is generated from here. Names and units are OpenTelemetry's; Prometheus sees them as `Metric.exposed`.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from noria.shared.telemetry.spans import (
    ATTRIBUTE_CLASS,
    ATTRIBUTE_CODE,
    ATTRIBUTE_DEVICE,
    ATTRIBUTE_DIRECTION,
    ATTRIBUTE_END,
    ATTRIBUTE_GROUP,
    ATTRIBUTE_METHOD,
    ATTRIBUTE_PURPOSE,
    ATTRIBUTE_ROUTE,
    ATTRIBUTE_SERVICE,
    ATTRIBUTE_STATE,
    ATTRIBUTE_STATUS,
    ATTRIBUTE_TENANT,
    ATTRIBUTE_WAY,
)


class MetricKind(enum.Enum):
    """The kind of a metric: COUNTER only grows while a process lives, GAUGE is a present state, HISTOGRAM counts in buckets.

    Admission's counters and histograms grow over all its lives where it keeps a journal.
    """

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; units as in UCUM, things that are counted in braces. bounds: upper ones of a histogram's buckets."""

    name: str
    unit: str
    description: str
    kind: MetricKind
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def exposed(self) -> str:
        """The name that Prometheus knows it by; a histogram's series add _bucket, _count and _sum."""
        unit = "_ratio" if self.unit == "1" and self.kind is MetricKind.GAUGE else _SUFFIXES.get(self.unit, "")
        name = self.name.replace(".", "_")
        return (name if name.endswith(unit) else name + unit) + ("_total" if self.kind is MetricKind.COUNTER else "")


def label(attribute: str) -> str:
    """What Prometheus calls an attribute."""
    return attribute.removeprefix("noria.").replace(".", "_")


def _counter(name: str, unit: str, description: str, *attributes: str) -> Metric:
    return Metric(name, unit, description, MetricKind.COUNTER, attributes)


def _gauge(name: str, unit: str, description: str, *attributes: str) -> Metric:
    return Metric(name, unit, description, MetricKind.GAUGE, attributes)


def _histogram(name: str, unit: str, bounds: Iterable[float], description: str, *attributes: str) -> Metric:
    return Metric(name, unit, description, MetricKind.HISTOGRAM, attributes, tuple(bounds))


_WHOSE: Final = (ATTRIBUTE_CLASS, ATTRIBUTE_TENANT)
_LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_SHORT_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_TOKENS: Final = tuple(float(1 << power) for power in range(18))

# The gateway.
HTTP_DURATION: Final = _histogram(
    "http.server.request.duration", "s", _LONG_S, "HTTP requests, from receipt to the last byte.",
    ATTRIBUTE_METHOD, ATTRIBUTE_ROUTE, ATTRIBUTE_STATUS,
)  # fmt: skip
HTTP_ACTIVE: Final = _gauge("http.server.active_requests", "{request}", "Generation requests under way over HTTP.")
CONSOLES: Final = _gauge("noria.console.watchers", "{client}", "Consoles that are open.")
GATEWAY_METRICS: Final = (HTTP_DURATION, HTTP_ACTIVE, CONSOLES)

# Admission, all from one snapshot of the ledger that survives restarts. The first three are the terms of the conservation law:
# accepted = the sum of ended + in flight. By class and tenant, streams.ended is the count of stream.time, prompt_tokens and
# output_tokens; queue.time, prefill.time and first_token.time have one count, which with that of token.interval makes
# tokens.generated.
LEDGER_ACCEPTED: Final = _counter("noria.ledger.accepted", "{stream}", "Streams ever accepted into the ledger.")
LEDGER_ENDED: Final = _counter("noria.ledger.ended", "{stream}", "Of them, those that ended, by reason.", ATTRIBUTE_END)
LEDGER_IN_FLIGHT: Final = _gauge("noria.ledger.in_flight", "{stream}", "Of them, those that have not ended.")
STREAMS_ACCEPTED: Final = _counter("noria.streams.accepted", "{stream}", "Streams accepted.", *_WHOSE)
STREAMS_ENDED: Final = _counter(
    "noria.streams.ended", "{stream}", "Accepted streams that ended.", *_WHOSE, ATTRIBUTE_END
)
STREAMS_IN_FLIGHT: Final = _gauge(
    "noria.streams.in_flight", "{stream}", "Accepted streams that have not ended.", *_WHOSE
)
REQUESTS_REFUSED: Final = _counter(
    "noria.requests.refused", "{request}", "Requests refused, by code.", *_WHOSE, ATTRIBUTE_CODE
)
QUEUE_TIME: Final = _histogram(
    "noria.queue.time", "s", _LONG_S, "From a stream's submission to its first step.", *_WHOSE
)
PREFILL_TIME: Final = _histogram(
    "noria.prefill.time", "s", _LONG_S, "From a stream's first step to its first token.", *_WHOSE
)
FIRST_TOKEN_TIME: Final = _histogram(
    "noria.first_token.time", "s", _LONG_S, "From a request's receipt to a stream's first token.", *_WHOSE
)
TOKEN_INTERVAL: Final = _histogram("noria.token.interval", "s", _SHORT_S, "Between two tokens of a stream.", *_WHOSE)
DECODE_TIME: Final = _histogram("noria.decode.time", "s", _LONG_S, "From a stream's first token to its end.", *_WHOSE)
STREAM_TIME: Final = _histogram(
    "noria.stream.time", "s", _LONG_S, "From a request's receipt to a stream's end, whatever its reason.", *_WHOSE,
    ATTRIBUTE_END,
)  # fmt: skip
STREAM_PROMPT_TOKENS: Final = _histogram(
    "noria.stream.prompt_tokens", "{token}", _TOKENS, "Prompt tokens of streams that ended.", *_WHOSE
)
STREAM_OUTPUT_TOKENS: Final = _histogram(
    "noria.stream.output_tokens", "{token}", _TOKENS, "Tokens generated for streams that ended.", *_WHOSE
)
TOKENS_GENERATED: Final = _counter("noria.tokens.generated", "{token}", "Tokens that entered the ledger.", *_WHOSE)
USED_PROMPT_TOKENS: Final = _counter(
    "noria.used.prompt_tokens", "{token}", "Prompt tokens of requests that were begun and have ended.", *_WHOSE
)
USED_CACHED_TOKENS: Final = _counter(
    "noria.used.cached_tokens", "{token}", "Those of them that were found in the cache.", *_WHOSE
)
USED_OUTPUT_TOKENS: Final = _counter(
    "noria.used.output_tokens", "{token}", "Tokens that clients got, of requests that have ended.", *_WHOSE
)
USED_WASTED_TOKENS: Final = _counter(
    "noria.used.wasted_tokens", "{token}", "Query tokens computed after the end of their stream.", *_WHOSE
)
USED_CACHE: Final = _counter("noria.used.cache", "{block}.us", "Cache blocks held, times microseconds.", *_WHOSE)
RECLAIM_TIME: Final = _histogram(
    "noria.reclaim.time", "s", _SHORT_S, "From the end of a running stream to the return of its last block.", *_WHOSE
)
CLIENTS: Final = _gauge("noria.clients", "{client}", "Clients of the public mailbox, the gateway included.")
RETAINED: Final = _gauge("noria.retained", "{request}", "Ended requests kept for clients that may come back.")
TOKENIZING: Final = _gauge("noria.tokenizing", "{request}", "Requests whose prompt is being tokenized.")
ADMISSION_METRICS: Final = (
    LEDGER_ACCEPTED, LEDGER_ENDED, LEDGER_IN_FLIGHT, STREAMS_ACCEPTED, STREAMS_ENDED, STREAMS_IN_FLIGHT, REQUESTS_REFUSED,
    QUEUE_TIME, PREFILL_TIME, FIRST_TOKEN_TIME, TOKEN_INTERVAL, DECODE_TIME, STREAM_TIME, STREAM_PROMPT_TOKENS,
    STREAM_OUTPUT_TOKENS, TOKENS_GENERATED, USED_PROMPT_TOKENS, USED_CACHED_TOKENS, USED_OUTPUT_TOKENS, USED_WASTED_TOKENS,
    USED_CACHE, RECLAIM_TIME, CLIENTS, RETAINED, TOKENIZING,
)  # fmt: skip

# The scheduler.
REQUESTS: Final = _gauge(
    "noria.requests", "{request}", "Requests by state: running, waiting (first time), preempted (waiting again).",
    ATTRIBUTE_STATE,
)  # fmt: skip
QUEUE_OLDEST: Final = _gauge("noria.queue.oldest", "s", "How long the longest waiting request has waited.")
PREDICTED_START: Final = _gauge(
    "noria.predicted.start", "s", "Predicted wait of a class's next request.", ATTRIBUTE_CLASS
)
SLOTS: Final = _gauge("noria.slots", "{slot}", "Places in a step: used or free.", ATTRIBUTE_STATE)
EPOCHS: Final = _counter("noria.epochs", "{epoch}", "Epochs opened: executors begun anew, and steps that failed.")
STEPS: Final = _counter("noria.steps", "{step}", "Steps computed.")
STEPS_FAILED: Final = _counter("noria.steps.failed", "{step}", "Steps that failed.")
STEP_TIME: Final = _histogram("noria.step.time", "s", _SHORT_S, "Time on the device of a step.")
STEP_TOKENS: Final = _histogram("noria.step.tokens", "{token}", _TOKENS, "Query tokens of a step.")
TOKENS_COMPUTED: Final = _counter("noria.tokens.computed", "{token}", "Query tokens computed.")
TOKENS_SAMPLED: Final = _counter("noria.tokens.sampled", "{token}", "Tokens sampled and kept.")
TOKENS_WASTED: Final = _counter("noria.tokens.wasted", "{token}", "Query tokens computed and thrown away.")
CACHE_USAGE: Final = _gauge("noria.cache.usage", "1", "Share of the cache's blocks that requests hold.")
CACHE_BLOCKS: Final = _gauge(
    "noria.cache.blocks", "{block}", "Cache blocks: blank, used, shared, cached (kept, unused), host.", ATTRIBUTE_GROUP,
    ATTRIBUTE_STATE,
)  # fmt: skip
CACHE_PROMPT_TOKENS: Final = _counter(
    "noria.cache.prompt_tokens", "{token}", "Prompt tokens, each counted once when first admitted."
)
CACHE_HIT_TOKENS: Final = _counter(
    "noria.cache.hit_tokens", "{token}", "Those of the prompt tokens that were found in the cache."
)
CACHE_RECOVERED_TOKENS: Final = _counter(
    "noria.cache.recovered_tokens", "{token}", "Tokens found in the cache again after a preemption."
)
CACHE_RECOMPUTED_TOKENS: Final = _counter(
    "noria.cache.recomputed_tokens", "{token}", "Tokens computed again after a preemption."
)
CACHE_EVICTIONS: Final = _counter("noria.cache.evictions", "{page}", "Cached pages given up for others.")
CACHE_RESETS: Final = _counter("noria.cache.resets", "{request}", "Requests preempted whose cache was given up.")
CACHE_RESET_TOKENS: Final = _counter(
    "noria.cache.reset_tokens", "{token}", "Tokens whose cache was given up when requests were preempted."
)
CACHE_SWAPS: Final = _counter(
    "noria.cache.swaps", "{request}", "Requests moved to the host pool and back.", ATTRIBUTE_DIRECTION
)
CACHE_SWAPPED_BLOCKS: Final = _counter(
    "noria.cache.swapped_blocks", "{block}", "Blocks of requests moved to the host pool."
)
SHARE_SERVICE: Final = _gauge(
    "noria.share.service", "{token}", "What was planned, by price; less what was paid back.", *_WHOSE
)
SHARE_COUNTER: Final = _gauge(
    "noria.share.counter", "{token}", "Virtual token counters; the least goes first.", *_WHOSE
)
SHARE_WAITING: Final = _gauge("noria.share.waiting", "{request}", "Waiting requests.", *_WHOSE)
SCHEDULER_METRICS: Final = (
    REQUESTS, QUEUE_OLDEST, PREDICTED_START, SLOTS, EPOCHS, STEPS, STEPS_FAILED, STEP_TIME, STEP_TOKENS, TOKENS_COMPUTED,
    TOKENS_SAMPLED, TOKENS_WASTED, CACHE_USAGE, CACHE_BLOCKS, CACHE_PROMPT_TOKENS, CACHE_HIT_TOKENS,
    CACHE_RECOVERED_TOKENS, CACHE_RECOMPUTED_TOKENS, CACHE_EVICTIONS, CACHE_RESETS, CACHE_RESET_TOKENS, CACHE_SWAPS,
    CACHE_SWAPPED_BLOCKS, SHARE_SERVICE, SHARE_COUNTER, SHARE_WAITING,
)  # fmt: skip

# The executor: a replica's tokens per second are the rate of its tokens, its use that of its busy time.
DEVICE_TOKENS: Final = _counter("noria.device.tokens", "{token}", "Query tokens computed.", ATTRIBUTE_DEVICE)
DEVICE_BUSY: Final = _counter("noria.device.busy", "s", "Time that the device computed.", ATTRIBUTE_DEVICE)
DEVICE_IDLE: Final = _counter("noria.device.idle", "s", "Time that it waited for a step between two.", ATTRIBUTE_DEVICE)
DEVICE_PREPARE: Final = _counter("noria.device.prepare", "s", "Time to turn plans into arrays.", ATTRIBUTE_DEVICE)
DEVICE_MEMORY: Final = _gauge(
    "noria.device.memory", "By", "Memory as planned at the start.", ATTRIBUTE_DEVICE, ATTRIBUTE_PURPOSE
)
DEVICE_STEPS: Final = _counter(
    "noria.device.steps",
    "{step}",
    "Steps computed on a GPU, by whether a graph was replayed.",
    ATTRIBUTE_DEVICE,
    ATTRIBUTE_WAY,
)
DEVICE_EXPERTS: Final = _counter(
    "noria.device.experts",
    "{expert}",
    "Experts whose weights steps read, over all layers of a mixture.",
    ATTRIBUTE_DEVICE,
)
DEVICE_UNRECORDED: Final = _counter(
    "noria.device.unrecorded", "{failure}", "Whether shapes of steps could not be recorded as graphs.", ATTRIBUTE_DEVICE
)
EXECUTOR_METRICS: Final = (
    DEVICE_TOKENS, DEVICE_BUSY, DEVICE_IDLE, DEVICE_PREPARE, DEVICE_MEMORY, DEVICE_STEPS, DEVICE_EXPERTS,
    DEVICE_UNRECORDED,
)  # fmt: skip

# The detokenizer.
TEXT_STREAMS: Final = _gauge("noria.text.streams", "{stream}", "Streams open for text.")
TEXT_TOKENS: Final = _counter("noria.text.tokens", "{token}", "Tokens turned into text.")
DETOKENIZER_METRICS: Final = (TEXT_STREAMS, TEXT_TOKENS)

# The supervisor.
SERVICE_UP: Final = _gauge("noria.service.up", "{service}", "1 while a service is ready, else 0.", ATTRIBUTE_SERVICE)
SERVICE_STARTS: Final = _counter(
    "noria.service.starts", "{start}", "Times a service was started; all but one are restarts.", ATTRIBUTE_SERVICE
)
SUPERVISOR_METRICS: Final = (SERVICE_UP, SERVICE_STARTS)

# Every process.
PROCESS_CPU: Final = _counter("noria.process.cpu", "s", "Processor time.", ATTRIBUTE_SERVICE)
PROCESS_MEMORY: Final = _gauge("noria.process.memory", "By", "Resident memory.", ATTRIBUTE_SERVICE)
PROCESS_START: Final = _gauge("noria.process.start", "s", "When it began, since 1970.", ATTRIBUTE_SERVICE)
MAIL_DROPPED: Final = _counter("noria.mail.dropped", "{message}", "Mail of or for another life.", ATTRIBUTE_SERVICE)
MAIL_MALFORMED: Final = _counter("noria.mail.malformed", "{message}", "Mail that cannot be read.", ATTRIBUTE_SERVICE)
MAIL_GAPS: Final = _counter("noria.mail.gaps", "{gap}", "Times that mail was lost on the way.", ATTRIBUTE_SERVICE)
MAIL_OUTBOX: Final = _gauge("noria.mail.outbox", "{message}", "Mail that waits for full sockets.", ATTRIBUTE_SERVICE)
SPANS_LOST: Final = _counter("noria.spans.lost", "{span}", "Spans that the collector did not take.", ATTRIBUTE_SERVICE)
PROCESS_METRICS: Final = (
    PROCESS_CPU, PROCESS_MEMORY, PROCESS_START, MAIL_DROPPED, MAIL_MALFORMED, MAIL_GAPS, MAIL_OUTBOX, SPANS_LOST,
)  # fmt: skip

METRICS: Final[dict[str, Metric]] = {
    each.name: each
    for each in (
        *GATEWAY_METRICS, *ADMISSION_METRICS, *SCHEDULER_METRICS, *EXECUTOR_METRICS, *DETOKENIZER_METRICS,
        *SUPERVISOR_METRICS, *PROCESS_METRICS,
    )
}  # fmt: skip
