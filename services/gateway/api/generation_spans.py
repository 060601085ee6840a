"""The span of one HTTP generation request, with the attribute names of OpenTelemetry's conventions."""

from noria.services.gateway.api.answering import RequestOutcome
from noria.services.gateway.api.generation_request import GenerationRequest
from noria.services.gateway.api.request_bodies import sampling_parameters
from noria.shared.telemetry import spans
from noria.shared.telemetry.telemetry import Attribute, Span, Telemetry

_FAILED_FROM = 500  # by the conventions, a client's mistakes are no errors of the server's span


def begin(telemetry: Telemetry, operation: str, method: str, route: str, traceparent: str) -> Span:
    """Begin the span of a request."""
    attributes: dict[str, Attribute] = {
        spans.ATTRIBUTE_OPERATION: operation,
        spans.ATTRIBUTE_PROVIDER: "noria",
        spans.ATTRIBUTE_METHOD: method,
        spans.ATTRIBUTE_ROUTE: route,
    }
    return telemetry.span(f"{method} {route}", traceparent, attributes, server=True)


def record_request(span: Span, request: GenerationRequest) -> None:
    """Record the request's parameters in its span, but no text."""
    body, sampling = request.body, sampling_parameters(request.body)
    requested: dict[str, Attribute | None] = {
        spans.ATTRIBUTE_REQUEST_MODEL: body.model,
        spans.ATTRIBUTE_MAX_TOKENS: request.max_tokens,
        spans.ATTRIBUTE_TEMPERATURE: sampling.get("temperature"),
        spans.ATTRIBUTE_TOP_P: sampling.get("top_p"),
        spans.ATTRIBUTE_CHOICES: request.choices if request.choices != 1 else None,
        spans.ATTRIBUTE_RESPONSE_ID: request.response_id,
    }
    span.set({name: value for name, value in requested.items() if value is not None})


def end(span: Span, outcome: RequestOutcome) -> None:
    """End the span with the request's outcome."""
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
