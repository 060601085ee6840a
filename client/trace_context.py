"""The trace context of whoever calls, where the program traces with OpenTelemetry; nothing is imported for it.

A program that has a current span has loaded OpenTelemetry already: it is looked for among what is loaded.
"""

import sys
from typing import Protocol


class _Context(Protocol):
    trace_id: int
    span_id: int
    trace_flags: int
    is_valid: bool


class _Span(Protocol):
    def get_span_context(self) -> _Context: ...


def current_traceparent() -> str:
    """The `traceparent` of the current span of the calling thread or task; empty when there is none."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "get_current_span"):
        return ""
    span: _Span = trace.get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
