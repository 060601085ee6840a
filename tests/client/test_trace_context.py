"""The client continues the trace of a program that traces with OpenTelemetry, and loads nothing for it."""

import subprocess
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from noria.client.trace_context import current_traceparent
from noria.shared.telemetry.tracing import parse_traceparent


def test_the_current_span_is_the_parent_of_what_is_asked_for() -> None:
    assert current_traceparent() == ""
    tracer = TracerProvider().get_tracer("an application")
    with tracer.start_as_current_span("its own work") as span:
        context = span.get_span_context()
        assert current_traceparent().startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
        assert parse_traceparent(current_traceparent()) == (context.trace_id, context.span_id, True)
    with trace.use_span(trace.INVALID_SPAN):
        assert current_traceparent() == ""


def test_nothing_is_loaded_where_nobody_traces() -> None:
    code = (
        "import sys; from noria.client.trace_context import current_traceparent; "
        "assert current_traceparent() == ''; assert 'opentelemetry' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
