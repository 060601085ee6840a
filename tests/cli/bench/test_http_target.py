"""Measured figures against a server that knows its own delays."""

import asyncio
import statistics
from collections.abc import Sequence

import pytest
import uvloop
from fakes.openai_server import OpenAiServer

from noria.cli.bench.arrivals import ClosedLoop, LoadPattern, PoissonArrivals
from noria.cli.bench.load_driver import LoadResult, run_load
from noria.cli.bench.statistics import summarize
from noria.cli.bench.targets.http_target import HttpTarget, HttpTargetSettings
from noria.cli.bench.workload import BenchRequest, LengthRange, synthetic_requests
from noria.shared.errors import UserError

# Far above what the client adds, so that a slow machine does not fail the tests, and far below the delays measured.
TOLERANCE_S = 0.02


def measured(
    server: OpenAiServer,
    requests: Sequence[BenchRequest],
    load: LoadPattern,
    *,
    chat: bool = False,
    timeout_s: float = 30.0,
) -> LoadResult:
    async def run() -> LoadResult:
        async with server:
            target = HttpTarget(HttpTargetSettings(server.url, "chat" if chat else "completions"))
            assert await target.describe() == "fake"
            result = await run_load(target, requests, load, timeout_s)
            await target.close()
            return result

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def requests_of(count: int, tokens: int = 4) -> list[BenchRequest]:
    return synthetic_requests(count, LengthRange(3, 3), LengthRange(tokens, tokens), seed=1)


@pytest.mark.parametrize("chat", [False, True])
def test_first_token_and_gaps_are_those_of_the_server(chat: bool) -> None:
    server = OpenAiServer(first_s=0.06, gap_s=0.03, line_end="\r\n" if chat else "\n")
    result = measured(server, requests_of(6, 5), ClosedLoop(3), chat=chat)
    found = summarize(result.timelines)
    assert found.completed == 6
    assert not found.errors
    assert found.ttft_ms.p50 > 59
    assert found.itl_ms.count == 6 * 4
    assert found.itl_ms.p50 > 29
    by_begin = sorted(result.timelines, key=lambda each: each.arrivals[0])
    late = [
        arrival - written
        for each, served in zip(by_begin, sorted(server.served, key=lambda each: each.written_s[0]), strict=True)
        for arrival, written in zip(each.arrivals, served.written_s, strict=True)
    ]
    assert statistics.median(map(abs, late)) < TOLERANCE_S
    for each in result.timelines:
        assert each.e2e_s >= 0.06 + 4 * 0.03


def test_tokens_are_counted_as_the_server_counts_them() -> None:
    server = OpenAiServer(gap_s=0.02, pieces=(1, 3, 2))
    found = summarize(measured(server, requests_of(2, 6), ClosedLoop(1)).timelines)
    assert found.output_tokens == 12
    assert (found.short, found.uncounted) == (0, 0)
    assert found.prompt_tokens == 14
    assert found.itl_ms.count == 2 * 5
    assert found.itl_ms.p50 == 0
    assert found.piece_ms.count == 2 * 2
    assert found.piece_ms.p50 > 19


def test_a_server_without_usage_has_its_pieces_counted() -> None:
    found = summarize(measured(OpenAiServer(usage=False), requests_of(2, 3), ClosedLoop(2)).timelines)
    assert (found.output_tokens, found.uncounted) == (6, 2)


def test_a_closed_load_keeps_so_many_in_flight_over_kept_connections() -> None:
    server = OpenAiServer(first_s=0.01)
    found = summarize(measured(server, requests_of(12), ClosedLoop(3)).timelines)
    assert found.completed == 12
    assert server.most_open == 3
    assert server.connections == 3  # the first one had asked for the model's name


def test_connections_that_the_server_closes_are_replaced() -> None:
    server = OpenAiServer(keep=False)
    found = summarize(measured(server, requests_of(4), ClosedLoop(2)).timelines)
    assert found.completed == 4
    assert server.connections == 4


def test_a_kept_connection_that_is_closed_as_it_is_used_again_fails_no_request() -> None:
    server = OpenAiServer(rude=True)
    found = summarize(measured(server, requests_of(20), ClosedLoop(2)).timelines)
    assert (found.completed, found.errors) == (20, {})
    assert len(server.served) == 20


def test_an_open_load_does_not_wait_for_answers() -> None:
    server = OpenAiServer(first_s=1.0)
    result = measured(server, requests_of(10), PoissonArrivals(200.0, seed=2))
    assert server.most_open == 10
    first = min(each.begun_s for each in result.timelines)
    assert max(each.begun_s for each in result.timelines) - first < 0.25
    assert summarize(result.timelines).ttft_ms.p50 > 999


def test_what_goes_wrong_is_an_error_of_that_request() -> None:
    refused = summarize(measured(OpenAiServer(status=503), requests_of(2), ClosedLoop(1)).timelines)
    assert refused.completed == 0
    assert list(refused.errors.values()) == [2]
    assert next(iter(refused.errors)).startswith("HTTP 503: ")
    cut = summarize(measured(OpenAiServer(cut_after=2), requests_of(2), ClosedLoop(1)).timelines)
    assert cut.completed == 0
    slow = summarize(measured(OpenAiServer(first_s=5.0), requests_of(1), ClosedLoop(1), timeout_s=0.1).timelines)
    assert list(slow.errors) == ["no end within 0.1 s"]


def test_the_body_says_what_was_asked_for() -> None:
    server = OpenAiServer()
    request = BenchRequest(0, "hello", 2)
    measured(server, [request], ClosedLoop(1))
    measured(server, [request], ClosedLoop(1), chat=True)
    plain, chat = (served.body for served in server.served)
    assert plain["prompt"] == "hello"
    assert chat["messages"] == [{"role": "user", "content": "hello"}]
    for body in (plain, chat):
        assert (body["max_tokens"], body["stream"], body["ignore_eos"], body["temperature"]) == (2, True, True, 0.0)
        assert body["stream_options"] == {"include_usage": True}


def test_nobody_there_is_told_at_once() -> None:
    async def ask(url: str) -> None:
        await HttpTarget(HttpTargetSettings(url)).describe()

    with pytest.raises(UserError, match="does not name its models"):
        asyncio.run(ask("http://127.0.0.1:9"))
    for wrong in ("ftp://x", "http://", "http://x:99999"):
        with pytest.raises(UserError, match="is not an http"):
            HttpTarget(HttpTargetSettings(wrong))
