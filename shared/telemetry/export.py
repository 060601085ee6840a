"""Spans and metrics on their way to a collector by OTLP, over HTTP or gRPC, from threads of their own.

Whatever is not taken is lost and nobody waits for it: the queue of spans is bounded, and closing takes a bounded time.
The OpenTelemetry SDK is imported only where there is an endpoint.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, assert_never

from noria.shared.telemetry.instruments import Metric, MetricKind
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.tracing import SpanRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Gauge, Histogram, MetricExporter, Sum
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

HTTP: Final = "http/protobuf"
_EXPORT_S: Final = 2.0
_SPANS_EVERY_S: Final = 0.5
_METRICS_EVERY_S: Final = 5.0
_SPANS_QUEUED_MAX: Final = 4096
_BATCH_MAX: Final = 512


class _PeriodicThread:
    """A thread that calls `work` every `every_s` seconds, and once more at the end."""

    def __init__(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        self._work = work
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask for the last time; `join` waits for it."""
        self._ended.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._work()
        self._work()


class SpanExport:
    """Sends finished spans to an OTLP collector in batches. lost: spans that were not taken."""

    def __init__(self, endpoint: str, protocol: str, resource: "Resource") -> None:
        self.lost = 0
        self._resource = resource
        self._queue: deque[SpanRecord] = deque()
        self._exporter = _span_exporter(endpoint, protocol)
        self._periodic = _PeriodicThread("spans", _SPANS_EVERY_S, self._export)

    def take(self, record: SpanRecord) -> None:
        """Queue a finished span; dropped when the collector is too slow."""
        if len(self._queue) < _SPANS_QUEUED_MAX:
            self._queue.append(record)
        else:
            self.lost += 1

    def close(self) -> None:
        """Begin to send the spans that are left; `join` waits for it."""
        self._periodic.end()

    def join(self) -> None:
        """Wait for the last export, about 2.5 s at most, and shut the exporter down."""
        self._periodic.join(_EXPORT_S + 0.5)
        self._exporter.shutdown()

    def _export(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), _BATCH_MAX))]
            if self._exporter.export([_readable(each, self._resource) for each in batch]) is SpanExportResult.FAILURE:
                self.lost += len(batch)
                return


class MetricExport:
    """Sends the latest values every five seconds. `publish` is one assignment: old values are sent, or new ones.

    since: when those metrics began to be counted, by name, that did so before this process.
    """

    def __init__(self, endpoint: str, protocol: str, resource: "Resource") -> None:
        self._latest: Sequence[MetricValue] = ()
        self._resource = resource
        self._began_ns = time.time_ns()
        self.since: dict[str, int] = {}
        self._exporter = _metric_exporter(endpoint, protocol)
        self._periodic = _PeriodicThread("metrics", _METRICS_EVERY_S, self._export)

    def publish(self, values: Sequence[MetricValue]) -> None:
        """Replace the values that the next export sends."""
        self._latest = values

    def close(self) -> None:
        """Send the latest values once more."""
        self._periodic.end()

    def join(self) -> None:
        """Wait for the last export, about 2.5 s at most, and shut the exporter down."""
        self._periodic.join(_EXPORT_S + 0.5)
        self._exporter.shutdown()

    def _export(self) -> None:
        from opentelemetry.sdk.metrics import export
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        latest = self._latest
        if not latest:
            return
        groups = groupby(sorted(latest, key=lambda each: each.metric.name), key=lambda each: each.metric)
        metrics = [
            export.Metric(metric.name, metric.description, metric.unit, self._data(metric, values))
            for metric, values in groups
        ]
        scope = export.ScopeMetrics(InstrumentationScope("noria"), metrics, "")
        self._exporter.export(export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")]))

    def _data(self, metric: Metric, values: Iterable[MetricValue]) -> "Sum | Gauge | Histogram":
        from opentelemetry.sdk.metrics import export

        now_ns, began_ns = time.time_ns(), self.since.get(metric.name, self._began_ns)
        cumulative = export.AggregationTemporality.CUMULATIVE
        if metric.kind is MetricKind.HISTOGRAM:
            points = [
                export.HistogramDataPoint(
                    dict(each.attributes), began_ns, now_ns, sum(each.counts), each.number, each.counts, metric.bounds,
                    float("inf"), float("-inf"),
                )
                for each in values
            ]  # fmt: skip
            return export.Histogram(points, cumulative)
        numbers = [export.NumberDataPoint(dict(each.attributes), began_ns, now_ns, each.number) for each in values]
        match metric.kind:
            case MetricKind.COUNTER:
                return export.Sum(numbers, cumulative, is_monotonic=True)
            case MetricKind.GAUGE:
                return export.Gauge(numbers)
            case _:
                assert_never(metric.kind)


# The time covers all tries of one batch: a collector that is away must not hold up the end of a process.
def _span_exporter(endpoint: str, protocol: str) -> "SpanExporter":
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_EXPORT_S)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter

    return GrpcSpanExporter(endpoint=endpoint, timeout=_EXPORT_S)


def _metric_exporter(endpoint: str, protocol: str) -> "MetricExporter":
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        return OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=_EXPORT_S)
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter

    return GrpcMetricExporter(endpoint=endpoint, timeout=_EXPORT_S)


def _readable(record: SpanRecord, resource: "Resource") -> "ReadableSpan":
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(trace_id: int, span_id: int, *, remote: bool) -> SpanContext:
        return SpanContext(trace_id, span_id, remote, TraceFlags(TraceFlags.SAMPLED))

    status = Status(StatusCode.ERROR, record.error) if record.error else Status()
    return ReadableSpan(
        record.name,
        context(record.trace_id, record.span_id, remote=False),
        context(record.trace_id, record.parent_id, remote=True) if record.parent_id else None,
        resource,
        record.attributes,
        [Event(name, attributes, at_ns) for name, at_ns, attributes in record.events],
        [Link(context(trace_id, span_id, remote=True)) for trace_id, span_id in record.links],
        SpanKind.SERVER if record.server else SpanKind.INTERNAL,
        None,
        status,
        record.begin_ns,
        record.end_ns,
        InstrumentationScope("noria"),
    )
