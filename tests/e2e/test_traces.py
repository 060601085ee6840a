"""One request is one trace across the processes."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2e.harness import stack
from fakes.collector import Collector

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


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
