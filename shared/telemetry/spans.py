"""Every span, span event and attribute name of the product, once, with what it means. Metrics are in `instruments`.

Names of OpenTelemetry's semantic conventions (`gen_ai.*`, `http.*`, `url.*`, `error.type`) are used as they are defined there.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SpanKind:
    """One kind of span: who records it, under which parent, with which attributes and events.

    parents: names of the spans it may hang under; empty for the caller's own.
    """

    name: str
    service: str
    parents: tuple[str, ...]
    description: str
    attributes: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


ATTRIBUTE_REQUEST: Final = "noria.request"
ATTRIBUTE_CHOICE: Final = "noria.choice"
ATTRIBUTE_END: Final = "noria.end"
ATTRIBUTE_DECISION: Final = "noria.decision"
ATTRIBUTE_STEP: Final = "noria.step"
ATTRIBUTE_QUERY_TOKENS: Final = "noria.query_tokens"
ATTRIBUTE_TRACES: Final = "noria.traces"
ATTRIBUTE_REASON: Final = "noria.reason"
ATTRIBUTE_GROUP: Final = "noria.group"
ATTRIBUTE_STATE: Final = "noria.state"
ATTRIBUTE_DIRECTION: Final = "noria.direction"
ATTRIBUTE_TENANT: Final = "noria.tenant"
ATTRIBUTE_CLASS: Final = "noria.class"
ATTRIBUTE_CODE: Final = "noria.code"
ATTRIBUTE_SERVICE: Final = "noria.service"
ATTRIBUTE_DEVICE: Final = "noria.device"
ATTRIBUTE_PURPOSE: Final = "noria.purpose"
ATTRIBUTE_WAY: Final = "noria.way"
ATTRIBUTE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
ATTRIBUTE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ATTRIBUTE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
ATTRIBUTE_REQUEST_MODEL: Final = "gen_ai.request.model"
ATTRIBUTE_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
ATTRIBUTE_TEMPERATURE: Final = "gen_ai.request.temperature"
ATTRIBUTE_TOP_P: Final = "gen_ai.request.top_p"
ATTRIBUTE_CHOICES: Final = "gen_ai.request.choice.count"
ATTRIBUTE_RESPONSE_MODEL: Final = "gen_ai.response.model"
ATTRIBUTE_RESPONSE_ID: Final = "gen_ai.response.id"
ATTRIBUTE_OPERATION: Final = "gen_ai.operation.name"
ATTRIBUTE_PROVIDER: Final = "gen_ai.provider.name"
ATTRIBUTE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
ATTRIBUTE_METHOD: Final = "http.request.method"
ATTRIBUTE_ROUTE: Final = "http.route"
ATTRIBUTE_STATUS: Final = "http.response.status_code"
ATTRIBUTE_ERROR: Final = "error.type"

ATTRIBUTES: Final[dict[str, str]] = {
    ATTRIBUTE_REQUEST: "The request's number inside the stack.",
    ATTRIBUTE_CHOICE: "Which of its choices, from 0.",
    ATTRIBUTE_END: "Why a stream ended: stop, length, cancelled, deadline, shed or error.",
    ATTRIBUTE_DECISION: "What was decided: accepted or the code of a refusal; why a stage was left.",
    ATTRIBUTE_STEP: "The step's number within its epoch.",
    ATTRIBUTE_QUERY_TOKENS: "Query tokens computed.",
    ATTRIBUTE_TRACES: "How many traces have a stream in a step.",
    ATTRIBUTE_REASON: "Why a request was preempted: swap, reset or epoch (the executor began anew).",
    ATTRIBUTE_GROUP: "An attention group's place in the model.",
    ATTRIBUTE_STATE: "A state, see the metric.",
    ATTRIBUTE_DIRECTION: "out to the host or in from it.",
    ATTRIBUTE_TENANT: "The tenant; `other` for those beyond `telemetry.tenants_max`.",
    ATTRIBUTE_CLASS: "The traffic class.",
    ATTRIBUTE_CODE: "The code of a refusal.",
    ATTRIBUTE_SERVICE: "The process.",
    ATTRIBUTE_DEVICE: "What computes.",
    ATTRIBUTE_PURPOSE: "What memory is used for.",
    ATTRIBUTE_WAY: "replay of a graph, capture of one, or eager: operation by operation.",
    ATTRIBUTE_INPUT_TOKENS: "Prompt tokens.",
    ATTRIBUTE_OUTPUT_TOKENS: "Tokens generated.",
    ATTRIBUTE_CACHED_TOKENS: "Prompt tokens found in the cache.",
    ATTRIBUTE_REQUEST_MODEL: "The model asked for.",
    ATTRIBUTE_MAX_TOKENS: "The most tokens asked for.",
    ATTRIBUTE_TEMPERATURE: "As asked for.",
    ATTRIBUTE_TOP_P: "As asked for.",
    ATTRIBUTE_CHOICES: "How many choices were asked for.",
    ATTRIBUTE_RESPONSE_MODEL: "The model that answered.",
    ATTRIBUTE_RESPONSE_ID: "The id in the answer.",
    ATTRIBUTE_OPERATION: "chat or text_completion.",
    ATTRIBUTE_PROVIDER: "noria.",
    ATTRIBUTE_FINISH_REASONS: "One for each choice.",
    ATTRIBUTE_METHOD: "The HTTP method.",
    ATTRIBUTE_ROUTE: "The HTTP route.",
    ATTRIBUTE_STATUS: "The HTTP status that was answered.",
    ATTRIBUTE_ERROR: "What kind of failure it was.",
}

EVENT_CHUNK: Final = "chunk"
EVENT_PREEMPTED: Final = "preempted"
EVENT_RESUMED: Final = "resumed"
EVENT_RECOVERED: Final = "recovered"
EVENTS: Final[dict[str, str]] = {
    EVENT_CHUNK: "A part of the prompt went into a step: how many tokens, into which.",
    EVENT_PREEMPTED: "The stream gave way to others, or lost its executor: why.",
    EVENT_RESUMED: "A preempted stream has a slot again.",
    EVENT_RECOVERED: "The stream was handed to a service that began a new life, with what it had generated.",
}

SPAN_HTTP: Final = "http"  # the gateway names it after method and route
SPAN_ADMIT: Final = "admit"
SPAN_TOKENIZE: Final = "tokenize"
SPAN_QUEUE: Final = "queue"
SPAN_PREFILL: Final = "prefill"
SPAN_DECODE: Final = "decode"
SPAN_STEP: Final = "step"
SPAN_STREAM: Final = "stream"

_OF_STREAM: Final = (ATTRIBUTE_REQUEST, ATTRIBUTE_CHOICE, ATTRIBUTE_OUTPUT_TOKENS, ATTRIBUTE_DECISION)
SPANS: Final[tuple[SpanKind, ...]] = (
    SpanKind(
        SPAN_HTTP,
        "gateway",
        (),
        "A generation request over HTTP, from its receipt to the last byte; named METHOD ROUTE, kind SERVER.",
        (
            ATTRIBUTE_OPERATION,
            ATTRIBUTE_PROVIDER,
            ATTRIBUTE_REQUEST_MODEL,
            ATTRIBUTE_MAX_TOKENS,
            ATTRIBUTE_TEMPERATURE,
            ATTRIBUTE_TOP_P,
            ATTRIBUTE_CHOICES,
            ATTRIBUTE_RESPONSE_MODEL,
            ATTRIBUTE_RESPONSE_ID,
            ATTRIBUTE_INPUT_TOKENS,
            ATTRIBUTE_OUTPUT_TOKENS,
            ATTRIBUTE_FINISH_REASONS,
            ATTRIBUTE_METHOD,
            ATTRIBUTE_ROUTE,
            ATTRIBUTE_STATUS,
            ATTRIBUTE_ERROR,
        ),
    ),
    SpanKind(
        SPAN_ADMIT,
        "admission",
        (SPAN_HTTP,),
        "From a request's receipt to the decision.",
        (ATTRIBUTE_REQUEST, ATTRIBUTE_DECISION, ATTRIBUTE_TENANT, ATTRIBUTE_CLASS, ATTRIBUTE_INPUT_TOKENS),
    ),
    SpanKind(
        SPAN_TOKENIZE,
        "admission",
        (SPAN_ADMIT,),
        "Chat template and tokenizer, in a worker thread.",
        (ATTRIBUTE_REQUEST, ATTRIBUTE_INPUT_TOKENS),
    ),
    SpanKind(
        SPAN_QUEUE,
        "scheduler",
        (SPAN_HTTP, SPAN_ADMIT),
        "Waiting for a slot, once more after each preemption.",
        _OF_STREAM,
        (EVENT_PREEMPTED, EVENT_RESUMED, EVENT_RECOVERED),
    ),
    SpanKind(
        SPAN_PREFILL,
        "scheduler",
        (SPAN_HTTP, SPAN_ADMIT),
        "From its slot to the first token.",
        (*_OF_STREAM, ATTRIBUTE_CACHED_TOKENS),
        (EVENT_CHUNK, EVENT_PREEMPTED),
    ),
    SpanKind(
        SPAN_DECODE,
        "scheduler",
        (SPAN_HTTP, SPAN_ADMIT),
        "From the first token on, until it ends or gives way.",
        _OF_STREAM,
        (EVENT_PREEMPTED,),
    ),
    SpanKind(
        SPAN_STEP,
        "executor",
        (SPAN_HTTP, SPAN_ADMIT),
        "One step on the device, in the trace of a stream that it admits, or of the oldest; linked with the others in it.",
        (ATTRIBUTE_STEP, ATTRIBUTE_QUERY_TOKENS, ATTRIBUTE_TRACES),
    ),
    SpanKind(
        SPAN_STREAM,
        "detokenizer",
        (SPAN_HTTP, SPAN_ADMIT),
        "A stream's text, from its opening to its end.",
        (ATTRIBUTE_REQUEST, ATTRIBUTE_CHOICE, ATTRIBUTE_END, ATTRIBUTE_OUTPUT_TOKENS),
    ),
)
