"""One request is one trace across the processes."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from e2e.harness import stack
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector:
    """An OTLP receiver that keeps (service, name, trace id, span id, parent id, start, end)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, str, str, str, int, int]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
                for resource in request.resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                            times = (span.start_time_unix_nano, span.end_time_unix_nano)
                            collector.spans.append((names["service.name"], span.name, *ids, *times))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                del arguments

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def test_a_request_is_one_trace_over_the_processes_without_orphans(collector: Collector, tiny_model: Path) -> None:
    with stack(str(tiny_model), "--otlp-endpoint", collector.url) as running:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True}
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=30).raise_for_status()
        running.wait_idle()
        running.stop()  # which exports what has not been exported yet
    mine = [span for span in collector.spans if span[2] == TRACE]
    services = {span[0] for span in mine}
    assert services == {"noria-gateway", "noria-admission", "noria-scheduler", "noria-executor", "noria-detokenizer"}
    known = {span[3] for span in mine} | {PARENT}
    assert [span for span in mine if span[4] not in known] == []
    assert [span[0] for span in mine if span[4] == PARENT] == ["noria-gateway"]
    assert {"queue", "prefill", "decode"} <= {span[1] for span in mine if span[0] == "noria-scheduler"}
    # Alone, it is at the front of every step, and the first one computes its prompt.
    assert [span[1] for span in mine if span[0] == "noria-executor"] == ["step"] * 5
    assert all(start <= end for *_, start, end in mine)
