"""An OTLP receiver in memory: decodes what processes export over HTTP and gRPC."""

import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

Scalar = str | int | float | bool
Attributes = frozenset[tuple[str, Scalar]]


class Spanned(NamedTuple):
    """One received span. Times are nanoseconds; events are (name, attributes), links are (trace, span)."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    start: int
    end: int
    server: bool
    error: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str]]


def attributes_of(pairs: list[KeyValue]) -> Attributes:
    return frozenset((each.key, getattr(each.value, each.value.WhichOneof("value"))) for each in pairs)


def mapping_of(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: _plain(each.value) for each in pairs}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_plain(each) for each in value.array_value.values)
    return getattr(value, kind) if kind else None


class Collector:
    """Keeps spans, and the latest of each metric. Serves both protocols: `url` is for HTTP, `grpc_url` for gRPC.

    taken: how many exports came by each protocol.
    metrics: by name, without its numbers. points: the latest numbers, by name and attributes; of histograms the count.
    reporters: who sent any.
    """

    def __init__(self) -> None:
        self.spans: list[Spanned] = []
        self.metrics: dict[str, Metric] = {}
        self.points: dict[tuple[str, Attributes], float] = {}
        self.reporters: set[str] = set()
        self.taken: Counter[str] = Counter()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = collector.take(self.path, body)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                del arguments

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.grpc = grpc.server(ThreadPoolExecutor(4))
        add_TraceServiceServicer_to_server(_Traces(self), self.grpc)
        add_MetricsServiceServicer_to_server(_Metrics(self), self.grpc)
        self.grpc_url = f"http://127.0.0.1:{self.grpc.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "Collector":
        self.thread.start()
        self.grpc.start()
        return self

    def urls(self) -> dict[str, str]:
        """The addresses where it listens, by protocol."""
        return {"http/protobuf": self.url, "grpc": self.grpc_url}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.grpc.stop(None).wait()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def take(self, path: str, body: bytes) -> int:
        self.taken["http/protobuf"] += 1
        if path == "/v1/traces":
            self.take_spans(ExportTraceServiceRequest.FromString(body))
        elif path == "/v1/metrics":
            self.take_metrics(ExportMetricsServiceRequest.FromString(body))
        else:
            return 404
        return 200

    def take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            service = str(dict(attributes_of(list(resource.resource.attributes)))["service.name"])
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Spanned(
                            service,
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            span.kind == Span.SPAN_KIND_SERVER,
                            span.status.message if span.status.code == Status.STATUS_CODE_ERROR else "",
                            mapping_of(span.attributes),
                            [(each.name, mapping_of(each.attributes)) for each in span.events],
                            [(each.trace_id.hex(), each.span_id.hex()) for each in span.links],
                        )
                    )

    def take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            self.reporters.add(str(dict(attributes_of(list(resource.resource.attributes)))["service.name"]))
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self.metrics[metric.name] = metric
                    for histogram in metric.histogram.data_points:
                        self.points[metric.name, attributes_of(list(histogram.attributes))] = histogram.count
                    for point in (*metric.sum.data_points, *metric.gauge.data_points):
                        number = point.as_int if point.HasField("as_int") else point.as_double
                        self.points[metric.name, attributes_of(list(point.attributes))] = number

    def latest(self, name: str, **attributes: str | int) -> float:
        """Return the latest value of a metric with these attributes, whose names are given without `noria.`."""
        return self.points[name, frozenset((f"noria.{key}", value) for key, value in attributes.items())]


class _Traces(TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def Export(  # noqa: N802  # the protocol's name
        self, request: ExportTraceServiceRequest, context: object
    ) -> ExportTraceServiceResponse:
        self.collector.taken["grpc"] += 1
        self.collector.take_spans(request)
        return ExportTraceServiceResponse()


class _Metrics(MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self.collector = collector

    def Export(  # noqa: N802  # the protocol's name
        self, request: ExportMetricsServiceRequest, context: object
    ) -> ExportMetricsServiceResponse:
        self.collector.taken["grpc"] += 1
        self.collector.take_metrics(request)
        return ExportMetricsServiceResponse()
