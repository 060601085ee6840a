"""Writes log events and spans of requests: ids and counts, never prompts, outputs or credentials."""

from typing import Final, assert_never

from noria.proto.base import Service
from noria.services.admission.core.state.events import (
    AcceptedLogEntry,
    AttachedLogEntry,
    EndedLogEntry,
    RecoveredLogEntry,
    RefusedLogEntry,
    RequestLogEntry,
)
from noria.services.admission.tokenizer_pool import TokenizeResult
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.spans import (
    ATTRIBUTE_CLASS,
    ATTRIBUTE_DECISION,
    ATTRIBUTE_INPUT_TOKENS,
    ATTRIBUTE_REQUEST,
    ATTRIBUTE_TENANT,
    SPAN_ADMIT,
    SPAN_TOKENIZE,
)
from noria.shared.telemetry.telemetry import Span, Telemetry
from noria.shared.telemetry.tracing import NO_SPAN, trace_id

_ID_CHARACTERS_SHOWN: Final = 128


class RequestLog:
    """Writes log events of requests, and keeps the span of each request from its receipt to the answer."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._log = logger(Service.ADMISSION.value)
        self._spans: dict[tuple[str, str], Span] = {}

    def received(self, client: str, request_id: str, traceparent: str) -> tuple[str, str]:
        """A `Generate` came: begin its span. Returns the trace contexts of what follows from it, and of what is done in it.

        What follows hangs under the caller's span, which lasts until it has the end; without one, under this.
        """
        key = (client, request_id[:_ID_CHARACTERS_SHOWN])
        if not self._telemetry.enabled or key in self._spans:
            return traceparent, traceparent
        span = self._spans[key] = self._telemetry.span(SPAN_ADMIT, traceparent)
        return traceparent or span.traceparent, span.traceparent

    def turned_away(self, client: str, request_id: str) -> None:
        """End the span of a `Generate` that was refused because there are too many clients."""
        self._end_span(client, request_id).end({ATTRIBUTE_DECISION: "too many clients"}, error="too many clients")

    def tokenized(self, result: TokenizeResult) -> None:
        """Record the span of a finished tokenizer job."""
        if self._telemetry.enabled:
            span = self._telemetry.span(SPAN_TOKENIZE, result.job.traceparent, start_ago_s=result.worked_s)
            span.end(
                {ATTRIBUTE_REQUEST: result.job.number, ATTRIBUTE_INPUT_TOKENS: len(result.ids)},
                error=result.code.value if result.problem else "",
            )

    def write(self, entry: RequestLogEntry) -> None:
        """Log what happened to a request, and end its span when it is answered."""
        match entry:
            case AcceptedLogEntry():
                self._accepted(entry)
            case RefusedLogEntry():
                self._refused(entry)
            case AttachedLogEntry():
                self._log.info("request attached", request=entry.number, id=entry.id, client=entry.client)
                if not entry.awaited:
                    self._end_span(entry.client, entry.id).end(
                        {ATTRIBUTE_REQUEST: entry.number, ATTRIBUTE_DECISION: "attached"}
                    )
            case EndedLogEntry():
                self._log.info(
                    "stream ended",
                    request=entry.number,
                    choice=entry.choice,
                    id=entry.id,
                    end=entry.end.label,
                    prompt_tokens=entry.prompt_tokens,
                    output_tokens=entry.output_tokens,
                    total_ms=round(entry.total_ns / 1e6, 1),
                    detail=entry.detail,
                    **_trace(entry.traceparent),
                )
                self._end_span(entry.client, entry.id).end({ATTRIBUTE_DECISION: entry.end.label}, error=entry.end.label)
            case RecoveredLogEntry():
                self._log.info("request recovered", request=entry.number, id=entry.id, unfinished=entry.unfinished)
            case _:
                assert_never(entry)

    def _accepted(self, entry: AcceptedLogEntry) -> None:
        self._log.info(
            "request accepted",
            request=entry.number,
            id=entry.id,
            client=entry.client,
            prompt_tokens=entry.prompt_tokens,
            choices=entry.choices,
            tenant=entry.tenant,
            traffic_class=entry.traffic_class,
            **_trace(entry.traceparent),
        )
        self._end_span(entry.client, entry.id).end(
            {
                ATTRIBUTE_REQUEST: entry.number,
                ATTRIBUTE_INPUT_TOKENS: entry.prompt_tokens,
                ATTRIBUTE_DECISION: "accepted",
                ATTRIBUTE_TENANT: entry.tenant,
                ATTRIBUTE_CLASS: entry.traffic_class,
            }
        )

    def _refused(self, entry: RefusedLogEntry) -> None:
        span = self._end_span(entry.client, entry.id)
        self._log.info(
            "request refused",
            id=entry.id[:_ID_CHARACTERS_SHOWN],
            client=entry.client,
            code=entry.code.value,
            parameter=entry.parameter,
            tenant=entry.tenant,
            traffic_class=entry.traffic_class,
            **_trace(span.traceparent),
        )
        refused = {
            ATTRIBUTE_DECISION: entry.code.value,
            ATTRIBUTE_TENANT: entry.tenant,
            ATTRIBUTE_CLASS: entry.traffic_class,
        }
        span.end(refused, error=entry.code.value)

    def _end_span(self, client: str, request_id: str) -> Span:
        # A stream that ended after its request was accepted has none here any more; ending nothing costs nothing.
        return self._spans.pop((client, request_id[:_ID_CHARACTERS_SHOWN]), NO_SPAN)


def _trace(traceparent: str) -> dict[str, str]:
    """The field of a log line that names the trace."""
    found = trace_id(traceparent)
    return {"trace": found} if found else {}
