"""A request that outlives a process is still one trace: what the next life does continues it, and the ledger adds up."""

import os
import signal
import threading
from pathlib import Path

import httpx
import pytest
from e2e.harness import LENIENT, Stack, stack, wait_until
from e2e.scraping import check_law, complete_scrape, total
from e2e.test_traces import check_spans, context
from fakes.collector import Collector

TRACE = "0af7651916cd43dd8448eb211c80319c"


def ask(running: Stack, found: list[httpx.Response]) -> None:
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 1500, "ignore_eos": True}
    headers = {"traceparent": context(TRACE)}
    found.append(httpx.post(f"{running.url}/v1/completions", json=body, headers=headers, timeout=240))


@pytest.mark.parametrize(
    ("victim", "protocol"), [("scheduler", "grpc"), ("admission", "http/protobuf"), ("executor", "grpc")]
)
def test_a_request_that_outlives_a_process_is_one_trace_without_orphans(
    tiny_model: Path, victim: str, protocol: str
) -> None:
    environment = {**LENIENT, "OMP_NUM_THREADS": "1", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    with (
        Collector() as collector,
        stack(str(tiny_model), "--otlp-endpoint", collector.urls()[protocol], environment=environment) as running,
    ):
        pid = running.pids()[victim]
        found: list[httpx.Response] = []
        asking = threading.Thread(target=ask, args=(running, found))
        asking.start()
        # Who is killed takes along what it has not sent yet, half a second's at most.
        begun = {"admit", "tokenize", "queue", "prefill"}
        wait_until(lambda: running.of("scheduler")["counters"]["steps"] > 1, 60, "the first tokens")
        with running.held():
            assert running.of("scheduler")["running"] == 1
            wait_until(lambda: begun <= {each.name for each in collector.spans if each.trace == TRACE}, 60, "spans")
            os.kill(pid, signal.SIGKILL)
        asking.join()
        (response,) = found
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 1500
        running.wait_idle()
        law = complete_scrape(running.url)
        assert total(law, "noria_ledger_accepted_total") == 1
        assert total(law, "noria_ledger_ended_total") == 1
        assert total(law, "noria_ledger_in_flight") == 0
        assert check_law(law)
        assert total(law, "noria_tokens_generated_total") >= 1500
        assert total(law, "noria_service_starts_total", service=victim) == 2
        running.stop()
    assert set(collector.taken) == {protocol}
    mine = [each for each in collector.spans if each.trace == TRACE]
    check_spans(mine)
    assert {each.name for each in mine} >= {"admit", "tokenize", "queue", "prefill", "decode", "stream", "step"}
    (root,) = (each for each in mine if each.server)
    assert root.attributes["gen_ai.usage.output_tokens"] == 1500
    if victim == "scheduler":
        recovered = [given for each in mine for event, given in each.events if event == "recovered"]
        assert len(recovered) == 1
        assert 0 < recovered[0]["gen_ai.usage.output_tokens"] < 1500
    decodes = [each for each in mine if each.name == "decode"]
    assert decodes[-1].attributes["noria.decision"] == "length"
    assert all(each.parent == root.span for each in decodes)
