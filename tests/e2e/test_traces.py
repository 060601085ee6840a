"""One request is one trace across the processes, whatever becomes of it; metrics of the same run add up at every scrape."""

import asyncio
import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.harness import LENIENT, NORIA, Stack, stack
from e2e.scraping import Scrape, check_law, complete_scrape, scraped, total
from fakes.collector import Collector, Spanned

from noria.client import AsyncClient, Refused
from noria.shared.telemetry import spans
from noria.shared.telemetry.instruments import METRICS, MetricKind, label

PARENT = "b7ad6b7169203331"
PAGE = 16
LATE_NS = 5_000_000_000  # the last process notes the end after the client has it, later on a busy machine
CROWD = 8


def context(trace: str, flags: str = "01") -> str:
    return f"00-{trace}-{PARENT}-{flags}"


@dataclass
class Run:
    """What was done with one stack, and what it told of it."""

    running: Stack
    collector: Collector
    traces: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    scrapes: list[Scrape] = field(default_factory=list)
    pages: dict[str, Scrape] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    steps: str = ""

    def trace(self, name: str, flags: str = "01") -> str:
        self.traces[name] = secrets.token_hex(16)
        return context(self.traces[name], flags)

    def spans(self, name: str) -> list[Spanned]:
        return [each for each in self.collector.spans if each.trace == self.traces[name]]

    def span(self, name: str, kind: str) -> Spanned:
        found = [each for each in self.spans(name) if each.name == kind]
        assert len(found) == 1, (kind, found)
        return found[0]


async def ask(run: Run, client: httpx.AsyncClient, name: str, **options: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, **options}
    flags = options.pop("flags", "01")
    body.pop("flags", None)
    headers = {"traceparent": run.trace(name, flags), "x-request-id": name}
    return await client.post("/v1/chat/completions", json=body, headers=headers)


async def leave(run: Run, client: httpx.AsyncClient) -> None:
    """Read a little of a stream and close the connection; again, should the stream have come to its end before that."""
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 380, "ignore_eos": True, "stream": True}
    while not run.running.of("admission")["totals"]["cancelled"]:
        headers = {"traceparent": run.trace("cancelled"), "x-request-id": "cancelled-" + secrets.token_hex(4)}
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    break
        await asyncio.to_thread(run.running.wait_idle)


async def crowd(run: Run, client: httpx.AsyncClient) -> None:
    """Many at a time, who together need several times the blocks that there are; until a scrape has seen them give way."""
    while not any(total(each, "noria_requests", state="preempted") for each in run.scrapes):
        with run.running.held():
            asked = [
                asyncio.create_task(ask(run, client, f"crowd-{each}", max_tokens=120, seed=each, temperature=1.0))
                for each in range(CROWD)
            ]
            while run.running.of("admission")["requests"] < CROWD or not run.running.of("scheduler")["running"]:
                await asyncio.sleep(0.01)
            run.scrapes.append(await scraped_once(client))
        for response in await asyncio.gather(*asked):
            response.raise_for_status()


async def scraped_once(client: httpx.AsyncClient) -> Scrape:
    return scraped((await client.get("/metrics")).raise_for_status().text)


async def scrape(run: Run, client: httpx.AsyncClient, over: asyncio.Event) -> None:
    while not over.is_set():
        run.scrapes.append(await scraped_once(client))
        await asyncio.sleep(0.01)


async def drive(run: Run) -> None:
    async with httpx.AsyncClient(base_url=run.running.url, timeout=60) as client:
        over = asyncio.Event()
        scraping = asyncio.create_task(scrape(run, client, over))
        (await ask(run, client, "whole", max_tokens=5, temperature=0.5)).raise_for_status()
        assert "[DONE]" in (await ask(run, client, "streamed", max_tokens=5, stream=True)).text
        assert (await ask(run, client, "refused", n=1000)).status_code == 400
        (await ask(run, client, "unsampled", max_tokens=2, flags="00")).raise_for_status()
        await leave(run, client)
        await crowd(run, client)
        async with AsyncClient(run.running.endpoint) as mailbox:
            await mailbox.complete("hi", max_tokens=3, ignore_eos=True, traceparent=run.trace("mailbox"))
            await mailbox.complete("hi", max_tokens=3, ignore_eos=True, request_id="rootless")
            with pytest.raises(Refused):
                await mailbox.complete("hi", max_tokens=400, ttl_ms=1)
        while sum(map(check_law, run.scrapes)) <= 5:
            await asyncio.sleep(0.01)
        over.set()
        await scraping


@pytest.fixture(scope="module")
def run(tiny_model: Path) -> Iterator[Run]:
    """A stack with a small cache that was asked for all kinds of things and has stopped."""
    small = ("--page-size", str(PAGE), "--num-blocks", "28", "--max-model-tokens", "416")
    arguments = (*small, "--max-requests-per-batch", "8", "--log-format", "json")
    environment = {**LENIENT, "OMP_NUM_THREADS": "1", "NORIA_TELEMETRY_STEP_RATIO": "0.25"}
    with Collector() as collector:
        with stack(str(tiny_model), "--otlp-endpoint", collector.url, *arguments, environment=environment) as running:
            run = Run(running, collector)
            asyncio.run(drive(run))
            running.wait_idle()
            run.scrapes.append(complete_scrape(running.url))
            for name in ("scheduler", "nobody"):
                response = httpx.get(f"{running.url}/metrics/{name}", timeout=60)
                run.pages[name] = scraped(response.text) if response.status_code == 200 else {}
            run.state = running.state()
            command = [str(NORIA), "trace", "whole", "--runtime-dir", str(running.runtime_dir)]
            run.printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            command[2:3] = ["--steps", "--last", "50"]
            run.steps = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            running.stop()  # which exports what has not been exported yet
            run.numbers["log"] = running.log()
        yield run


def check(run: Run, name: str) -> list[Spanned]:
    """The spans of a request's trace, which hold together."""
    mine = run.spans(name)
    check_spans(mine)
    return mine


def check_spans(mine: list[Spanned]) -> None:
    """Assert that there is no orphan in a trace, everything is as the registry says, and children lie in their parents."""
    by_id = {each.span: each for each in mine}
    kinds = {each.name: each for each in spans.SPANS}
    for each in mine:
        assert each.start <= each.end
        kind = kinds[spans.SPAN_HTTP if each.server else each.name]
        assert each.service == f"noria-{kind.service}"
        assert set(each.attributes) <= set(kind.attributes), each.name
        assert {event for event, _ in each.events} <= set(kind.events), each.name
        if each.parent not in by_id:
            assert each.parent == PARENT, f"{each.name} is an orphan"
            continue
        parent = by_id[each.parent]
        assert (spans.SPAN_HTTP if parent.server else parent.name) in kind.parents
        # Ends are noted where they are seen: the client has the end a moment before the last process notes it.
        assert parent.start <= each.start and each.end <= parent.end + LATE_NS, each.name


@pytest.mark.parametrize("name", ["whole", "streamed"])
def test_an_answered_request_is_one_trace_over_all_processes(run: Run, name: str) -> None:
    mine = check(run, name)
    services = {"gateway", "admission", "scheduler", "executor", "detokenizer"}
    assert {each.service for each in mine} == {f"noria-{each}" for each in services}
    (root,) = (each for each in mine if each.parent == PARENT)
    assert root.server
    assert root.name == "POST /v1/chat/completions"
    assert root.attributes["gen_ai.operation.name"] == "chat"
    assert root.attributes["gen_ai.provider.name"] == "noria"
    assert root.attributes["gen_ai.request.model"] == root.attributes["gen_ai.response.model"] == "tiny"
    assert root.attributes["gen_ai.usage.output_tokens"] == 5
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert root.attributes["http.response.status_code"] == 200
    admit, tokenize = run.span(name, "admit"), run.span(name, "tokenize")
    assert (admit.parent, tokenize.parent) == (root.span, admit.span)
    assert admit.attributes["noria.decision"] == "accepted"
    queue, prefill, decode = (run.span(name, each) for each in ("queue", "prefill", "decode"))
    assert {each.parent for each in (queue, prefill, decode, run.span(name, "stream"))} == {root.span}
    assert (queue.end, prefill.end) == (prefill.start, decode.start)
    chunks = [given["noria.query_tokens"] for event, given in prefill.events if event == "chunk"]
    assert (
        sum(chunks) + prefill.attributes["gen_ai.usage.cache_read.input_tokens"]
        == admit.attributes["gen_ai.usage.input_tokens"]
    )
    assert decode.attributes["noria.decision"] == "length"
    steps = [each for each in mine if each.name == "step"]
    assert 1 <= len(steps) < 5, "the one that admits it, and a quarter of the others"


def test_a_request_whose_client_left_ends_as_cancelled(run: Run) -> None:
    mine = check(run, "cancelled")
    assert {each.name for each in mine} >= {"admit", "tokenize", "queue", "prefill", "decode", "stream", "step"}
    root = run.span("cancelled", "POST /v1/completions")
    assert root.attributes["error.type"] == "disconnected"
    assert root.error == "the connection was closed"
    assert run.span("cancelled", "decode").attributes["noria.decision"] == "cancelled"


def test_a_refused_request_is_two_spans_and_no_error_of_the_server(run: Run) -> None:
    mine = check(run, "refused")
    assert {each.service for each in mine} == {"noria-gateway", "noria-admission"}
    root = run.span("refused", "POST /v1/chat/completions")
    assert root.attributes["http.response.status_code"] == 400
    assert not root.error
    admit = run.span("refused", "admit")
    assert (admit.attributes["noria.decision"], admit.error) == ("invalid", "invalid")


def test_a_request_that_gave_way_shows_why_and_when_it_went_on(run: Run) -> None:
    preempted = []
    for number in range(CROWD):
        mine = check(run, f"crowd-{number}")
        reasons = [given.get("noria.reason") for each in mine for event, given in each.events if event == "preempted"]
        assert set(reasons) <= {"reset", "swap"}
        queues = [each for each in mine if each.name == "queue"]
        assert len(queues) == 1 + len(reasons) / 2, "told by the span that ends and by the one that begins"
        resumed = sum(event == "resumed" for each in queues for event, _ in each.events)
        assert resumed == len(queues) - 1
        preempted += reasons
    assert preempted, "the cache was large enough for all"


def test_steps_are_linked_with_the_other_requests_in_them(run: Run) -> None:
    steps = [each for number in range(CROWD) for each in run.spans(f"crowd-{number}") if each.name == "step"]
    crowd = {run.traces[f"crowd-{number}"] for number in range(CROWD)}
    linked = [step for step in steps if step.links]
    assert linked
    for step in linked:
        assert {trace for trace, _ in step.links} <= crowd - {step.trace}
        assert step.attributes["noria.traces"] == len(step.links) + 1


def test_a_client_of_the_mailbox_propagates_its_own_context_and_one_without_begins_a_trace(run: Run) -> None:
    mine = check(run, "mailbox")
    assert {each.service for each in mine} == {
        f"noria-{each}" for each in ("admission", "scheduler", "executor", "detokenizer")
    }
    (root,) = (each for each in run.collector.spans if each.name == "admit" and not each.parent and not each.error)
    rest = [each for each in run.collector.spans if each.trace == root.trace and each is not root]
    assert {"tokenize", "queue", "prefill", "decode", "stream"} <= {each.name for each in rest}
    assert {each.parent for each in rest} == {root.span}


def test_what_the_caller_does_not_sample_is_not_recorded(run: Run) -> None:
    assert run.spans("unsampled") == []


def test_log_lines_about_a_request_name_its_trace(run: Run) -> None:
    lines = [json.loads(line) for line in run.numbers["log"].splitlines() if line.startswith("{")]
    for name in ("whole", "cancelled"):
        events = {each["event"] for each in lines if each.get("trace") == run.traces[name]}
        assert {"request accepted", "stream ended"} <= events


def test_the_last_steps_are_drawn_one_after_the_other_on_the_device(run: Run) -> None:
    events = [each for each in json.loads(run.steps)["traceEvents"] if each["ph"] == "X"]
    computed = [(each["ts"], each["ts"] + each["dur"]) for each in events if each["tid"] == 2]
    assert len(computed) == 50 and len(events) == 4 * 50
    assert all(end <= begin for (_, end), (begin, _) in pairwise(computed))
    prepared = [each["ts"] + each["dur"] for each in events if each["tid"] == 0]
    assert all(ready <= begin for ready, (begin, _) in zip(prepared, computed, strict=True))


def test_the_trace_of_a_request_is_printed_without_a_collector(run: Run) -> None:
    lines = run.printed.splitlines()
    assert run.traces["whole"] in lines[0]
    assert [line.split()[0] for line in lines if line.lstrip().startswith(("queue", "prefill", "decode"))] == [
        "queue", "prefill", "decode",
    ]  # fmt: skip
    assert any("noria.decision=length" in line for line in lines)


def test_every_scrape_tells_a_ledger_that_adds_up(run: Run) -> None:
    assert sum(map(check_law, run.scrapes)) > 5
    assert any(total(scrape, "noria_ledger_in_flight") for scrape in run.scrapes), "only idle moments were seen"
    assert any(total(scrape, "noria_requests", state="preempted") for scrape in run.scrapes)


def test_histograms_counters_and_the_state_agree_at_the_end(run: Run) -> None:
    last, state = run.scrapes[-1], run.state
    totals = state["admission"]["totals"]
    assert total(last, "noria_ledger_accepted_total") == totals["accepted"] > 0
    assert total(last, "noria_ledger_ended_total", end="cancelled") == totals["cancelled"] == 1
    assert total(last, "noria_ledger_in_flight") == 0
    assert total(last, "noria_requests_refused_total", code="invalid") == 1
    generated = total(last, "noria_tokens_generated_total")
    assert generated == totals["output_tokens"] == total(last, "noria_stream_output_tokens_sum")
    firsts = total(last, "noria_first_token_time_seconds_count")
    assert firsts == total(last, "noria_queue_time_seconds_count") == totals["accepted"]
    assert total(last, "noria_token_interval_seconds_count") == generated - firsts
    assert total(last, "noria_steps_total") == state["scheduler"]["counters"]["steps"]
    assert total(last, "noria_device_tokens_total") >= total(last, "noria_tokens_computed_total")
    assert total(last, "noria_text_tokens_total") >= generated


def test_the_merged_page_holds_every_process_and_only_what_the_registry_knows(run: Run) -> None:
    last = run.scrapes[-1]
    services = {dict(given).get("service") for name, given in last if name == "noria_process_memory_bytes"}
    assert services == {"gateway", "admission", "scheduler", "executor", "detokenizer", "supervisor"}
    assert total(last, "noria_service_up") == 5
    expected = {each.exposed: each for each in METRICS.values()}
    for name, given in last:
        if name.startswith("vllm:"):
            continue
        metric = expected.get(name) or expected[re.sub("_(bucket|sum|count)$", "", name)]
        labels = {label(each) for each in metric.attributes}
        assert {each for each, _ in given} == labels | ({"le"} if name.endswith("_bucket") else set())
        assert (metric.exposed == name) is (metric.kind is not MetricKind.HISTOGRAM)


def test_one_process_tells_its_own_metrics_alone(run: Run) -> None:
    scheduler = run.pages["scheduler"]
    assert total(scheduler, "noria_steps_total") > 0
    assert not total(scheduler, "noria_ledger_accepted_total")
    assert run.pages["nobody"] == {}


def test_vllms_names_tell_the_same(run: Run) -> None:
    last = run.scrapes[-1]
    for own, theirs in (
        ("noria_tokens_generated_total", "vllm:generation_tokens_total"),
        ("noria_first_token_time_seconds_count", "vllm:time_to_first_token_seconds_count"),
        ("noria_stream_time_seconds_sum", "vllm:e2e_request_latency_seconds_sum"),
        ("noria_cache_hit_tokens_total", "vllm:prefix_cache_hits_total"),
        ("noria_cache_usage_ratio", "vllm:kv_cache_usage_perc"),
    ):
        assert total(last, theirs, model_name="tiny") == pytest.approx(total(last, own))
    assert total(last, "vllm:num_preemptions_total") == total(last, "noria_cache_resets_total") > 0
    assert total(last, "vllm:request_success_total", finished_reason="abort") == 1
    assert any(total(scrape, "vllm:num_requests_running") for scrape in run.scrapes)
