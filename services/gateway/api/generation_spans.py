"""The span of one generation request over HTTP, in the words of OpenTelemetry's conventions."""

from noria.services.gateway.api.answering import Outcome
from noria.services.gateway.api.generation_request import Work
from noria.services.gateway.api.request_bodies import sampling
from noria.shared.telemetry import spans
from noria.shared.telemetry.telemetry import Attribute, Span, Telemetry

_FAILED_FROM = 500  # of a client's own mistakes the conventions say that they are no errors of the server


def begin(telemetry: Telemetry, operation: str, method: str, route: str, traceparent: str) -> Span:
    """A request came."""
    attributes: dict[str, Attribute] = {
        spans.ATTRIBUTE_OPERATION: operation,
        spans.ATTRIBUTE_PROVIDER: "noria",
        spans.ATTRIBUTE_METHOD: method,
        spans.ATTRIBUTE_ROUTE: route,
    }
    return telemetry.span(f"{method} {route}", traceparent, attributes, server=True)


def understood(span: Span, work: Work) -> None:
    """The body was read: note what is asked for, but no text."""
    body, given = work.body, sampling(work.body)
    asked: dict[str, Attribute | None] = {
        spans.ATTRIBUTE_REQUEST_MODEL: body.model,
        spans.ATTRIBUTE_MAX_TOKENS: work.max_tokens,
        spans.ATTRIBUTE_TEMPERATURE: given.get("temperature"),
        spans.ATTRIBUTE_TOP_P: given.get("top_p"),
        spans.ATTRIBUTE_CHOICES: work.choices if work.choices != 1 else None,
        spans.ATTRIBUTE_RESPONSE_ID: work.response_id,
    }
    span.set({name: value for name, value in asked.items() if value is not None})


def end(span: Span, outcome: Outcome) -> None:
    """The request was answered, or nobody reads the answer any more."""
    attributes: dict[str, Attribute] = {spans.ATTRIBUTE_STATUS: outcome.status} if outcome.status else {}
    if outcome.model:
        attributes |= {
            spans.ATTRIBUTE_RESPONSE_MODEL: outcome.model,
            spans.ATTRIBUTE_INPUT_TOKENS: outcome.input_tokens,
            spans.ATTRIBUTE_OUTPUT_TOKENS: outcome.output_tokens,
            spans.ATTRIBUTE_FINISH_REASONS: outcome.finish_reasons,
        }
    if outcome.error_type:
        attributes[spans.ATTRIBUTE_ERROR] = outcome.error_type
    own = outcome.status >= _FAILED_FROM or outcome.status in (0, 200)
    span.end(attributes, error=outcome.error if own else "")
