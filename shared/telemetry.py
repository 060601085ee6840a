"""Spans and metrics of one process, exported by OTLP when an endpoint is configured and costing nothing otherwise.

Trace context travels as W3C `traceparent` in message headers and in the bodies that open a stream.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from noria.proto.base import Service
from noria.shared.config import TelemetrySettings
from noria.shared.instruments import Metric
from noria.shared.metrics import MetricExporter, Value

_EXPORT_S: Final = 2
_PUBLISHED_EVERY_NS: Final = 1_000_000_000
Attribute = str | int | float | bool | tuple[str, ...]


class Span:
    """A span under way. `traceparent` is what its children name; empty when nothing is recorded."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: object | None, traceparent: str) -> None:
        self._span = span
        self.traceparent = traceparent

    def end(self, attributes: Mapping[str, Attribute] | None = None, *, error: str = "") -> None:
        """Finish the span now."""
        if self._span is None:
            return
        from opentelemetry.trace import Span as SdkSpan
        from opentelemetry.trace import Status, StatusCode

        assert isinstance(self._span, SdkSpan)
        for name, value in (attributes or {}).items():
            self._span.set_attribute(name, value)
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()
        self._span = None

    def event(self, name: str, attributes: Mapping[str, Attribute] | None = None) -> None:
        """Note that something happened within the span."""
        if self._span is not None:
            from opentelemetry.trace import Span as SdkSpan

            assert isinstance(self._span, SdkSpan)
            self._span.add_event(name, dict(attributes or {}))


class Telemetry:
    """Tracer and metrics of a process. Without an endpoint, spans only pass their context on and values go nowhere."""

    def __init__(self, service: Service, incarnation: int, settings: TelemetrySettings) -> None:
        self._provider = None
        self._tracer = None
        self._metrics: MetricExporter | None = None
        if not settings.otlp_endpoint:
            return
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        self._endpoint = settings.otlp_endpoint.rstrip("/")
        self._resource = Resource.create(
            {
                "service.name": f"noria-{service.value}",
                "service.namespace": "noria",
                "service.instance.id": f"{incarnation:x}",
            }
        )
        self._provider = TracerProvider(
            resource=self._resource, sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio))
        )
        # The time covers all tries of one batch: a collector that is away must not hold up the end of a process.
        exporter = OTLPSpanExporter(endpoint=f"{self._endpoint}/v1/traces", timeout=_EXPORT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("noria")

    @property
    def enabled(self) -> bool:
        """Whether spans and metrics are recorded at all."""
        return self._tracer is not None

    def span(
        self,
        name: str,
        traceparent: str = "",
        attributes: Mapping[str, Attribute] | None = None,
        *,
        start_ago_s: float = 0.0,
        server: bool = False,
    ) -> Span:
        """Begin a span under the given parent; `start_ago_s` backdates it, for what is known only afterwards."""
        if self._tracer is None:
            return Span(None, traceparent)
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        parent = propagator.extract({"traceparent": traceparent}) if traceparent else None
        span = self._tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.SERVER if server else SpanKind.INTERNAL,
            attributes=dict(attributes or {}),
            start_time=time.time_ns() - int(start_ago_s * 1e9),
        )
        context = span.get_span_context()
        flags = int(context.trace_flags)
        return Span(span, f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}")

    def declare(self, metrics: Sequence[Metric]) -> None:
        """Say once, at the start, which metrics this process will publish."""
        assert self._metrics is None, "metrics are declared once"
        if self.enabled:
            self._metrics = MetricExporter(f"{self._endpoint}/v1/metrics", _EXPORT_S, self._resource, metrics)

    def publish(self, values: tuple[Value, ...]) -> None:
        """Hand over what all declared metrics stand at; a metric that is left out is not reported."""
        if self._metrics is not None:
            self._metrics.publish(values)

    def close(self) -> None:
        """Export what is left, within `_EXPORT_S` or so; it is lost when nobody takes it in that time."""
        if self._provider is None:
            return
        # Side by side, so that a collector that is away costs its time once.
        spans = threading.Thread(target=self._provider.shutdown)
        spans.start()
        if self._metrics is not None:
            self._metrics.close()
        spans.join()


class Publication(ABC):
    """A process's metrics, handed to the exporter at most once a second. Without telemetry nothing is copied."""

    def __init__(self, telemetry: Telemetry, metrics: Sequence[Metric]) -> None:
        self._telemetry = telemetry
        self._next_ns = 0
        telemetry.declare(metrics)

    def advance(self, now_ns: int) -> None:
        """Publish if a second has passed."""
        if self._telemetry.enabled and now_ns >= self._next_ns:
            self._next_ns = now_ns + _PUBLISHED_EVERY_NS
            self._telemetry.publish(self._values())

    def close(self) -> None:
        """Publish the last values."""
        if self._telemetry.enabled:
            self._telemetry.publish(self._values())

    @abstractmethod
    def _values(self) -> tuple[Value, ...]:
        """What the metrics stand at."""
