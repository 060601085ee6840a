"""An OTLP receiver in memory: what processes export over HTTP, decoded."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

Attributes = frozenset[tuple[str, str | int]]


def attributes_of(pairs: list[KeyValue]) -> Attributes:
    return frozenset((each.key, getattr(each.value, each.value.WhichOneof("value"))) for each in pairs)


class Collector:
    """Keeps spans as (service, name, trace id, span id, parent id, start, end), and the latest of each metric.

    metrics: by name, without its numbers. points: the latest numbers, by name and attributes. reporters: who sent any.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, str, str, str, int, int]] = []
        self.metrics: dict[str, Metric] = {}
        self.points: dict[tuple[str, Attributes], int] = {}
        self.reporters: set[str] = set()
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
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "Collector":
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def take(self, path: str, body: bytes) -> int:
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
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    self.spans.append((service, span.name, *ids, span.start_time_unix_nano, span.end_time_unix_nano))

    def take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            self.reporters.add(str(dict(attributes_of(list(resource.resource.attributes)))["service.name"]))
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    data = metric.sum if metric.HasField("sum") else metric.gauge
                    self.metrics[metric.name] = metric
                    for point in data.data_points:
                        self.points[metric.name, attributes_of(list(point.attributes))] = point.as_int

    def latest(self, name: str, **attributes: str | int) -> int:
        """The latest number of a metric with these attributes, written without `noria.`."""
        return self.points[name, frozenset((f"noria.{key}", value) for key, value in attributes.items())]
