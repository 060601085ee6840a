"""Spans pass their trace on, recent ones can be asked for, and a collector that is away holds nobody up."""

import importlib.util
import socket
import time

import pytest
from fakes.collector import Collector

from noria.proto.base import Service
from noria.shared.config.config import TelemetrySettings
from noria.shared.errors import UserError
from noria.shared.telemetry.instruments import SPANS_LOST
from noria.shared.telemetry.telemetry import Telemetry
from noria.shared.telemetry.tracing import parse_traceparent, trace_id

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
PROTOCOLS = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


def telemetry_of(**settings: object) -> Telemetry:
    return Telemetry(Service.SCHEDULER, 1, TelemetrySettings(**settings))  # type: ignore[arg-type]  # values of any option


def test_where_nothing_is_kept_or_exported_a_span_only_passes_its_parents_context_on() -> None:
    telemetry = telemetry_of(spans_kept=0)
    span = telemetry.span("queue", PARENT)
    assert not telemetry.enabled
    assert not span.recorded
    assert span.traceparent == PARENT
    span.event("reset")
    span.end({"noria.end": "stop"}, error="nothing happens")
    telemetry.close()


def test_the_spans_of_a_request_are_found_by_its_number_and_by_its_trace_with_those_under_way() -> None:
    telemetry = telemetry_of()
    other = telemetry.span("admit", attributes={"noria.request": 8})
    other.end()
    first = telemetry.span("queue", PARENT, {"noria.request": 7}, start_ago_s=2)
    first.event("resumed", {"noria.reason": "swap"})
    first.end({"noria.decision": "stop"})
    telemetry.span("decode", PARENT)
    for name in ("7", TRACE):
        ended, going = telemetry.answer_spans(name)
        assert (ended["name"], ended["parent"], ended["attributes"]["noria.decision"]) == (
            "queue", "b7ad6b7169203331", "stop",
        )  # fmt: skip
        assert ended["events"][0][0] == "resumed"
        assert 2.0 <= (ended["end_ns"] - ended["begin_ns"]) / 1e9 < 60.0
        assert (going["name"], going["end_ns"]) == ("decode", 0)
    assert [each["name"] for each in telemetry.answer_spans("8")] == ["admit"]
    assert telemetry.answer_spans("9") == telemetry.answer_spans("no trace") == telemetry.answer_spans("") == []


def test_only_so_many_finished_spans_are_kept_and_none_that_has_ended_twice() -> None:
    telemetry = telemetry_of(spans_kept=3)
    for number in range(5):
        span = telemetry.span("step", PARENT, {"noria.step": number})
        span.end()
        span.end()
    assert [each["attributes"]["noria.step"] for each in telemetry.answer_spans(TRACE)] == [2, 3, 4]


def test_a_share_of_new_traces_is_recorded_and_the_callers_decision_stands() -> None:
    telemetry = telemetry_of(sample_ratio=0.25)
    recorded = sum(telemetry.span("admit").recorded for _ in range(2000))
    assert 380 < recorded < 620
    nothing = telemetry_of(sample_ratio=0.0)
    assert not any(nothing.span("admit").recorded for _ in range(100))
    assert nothing.span("admit", PARENT).recorded
    assert not telemetry_of().span("admit", PARENT.removesuffix("01") + "00").recorded


def test_processes_agree_on_a_trace_because_the_flag_says_what_its_beginner_decided() -> None:
    root = telemetry_of(sample_ratio=0.5)
    for _ in range(50):
        span = root.span("admit")
        child = telemetry_of(sample_ratio=0.5).span("queue", span.traceparent)
        assert child.recorded is span.recorded
        assert trace_id(child.traceparent) == trace_id(span.traceparent)


@pytest.mark.parametrize(
    "header", ["", "x", "00-1-2-01", f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{TRACE}-{'0' * 16}-01"]
)
def test_what_is_no_trace_context_begins_a_new_trace(header: str) -> None:
    assert parse_traceparent(header) == (0, 0, False)
    span = telemetry_of().span("admit", header)
    assert span.recorded
    assert trace_id(span.traceparent) not in ("", TRACE)


@PROTOCOLS
@pytest.mark.parametrize("listening", [False, True], ids=["refused", "silent"])
def test_a_collector_that_is_away_does_not_hold_up_the_end_of_a_process(listening: bool, protocol: str) -> None:
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        if listening:
            collector.listen()
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        telemetry = telemetry_of(otlp_endpoint=endpoint, otlp_protocol=protocol)
        span = telemetry.span("queue", PARENT)
        assert span.traceparent.startswith(f"00-{TRACE}-")
        assert span.traceparent != PARENT
        span.end()
        begun = time.monotonic()
        telemetry.close()
        assert time.monotonic() - begun < 5


def test_spans_beyond_the_queue_and_those_that_nobody_takes_are_counted_as_lost() -> None:
    telemetry = telemetry_of(otlp_endpoint="http://127.0.0.1:9", otlp_metrics=False)

    def lost() -> float:
        (found,) = (each.number for each in telemetry.values() if each.metric is SPANS_LOST)
        return found

    assert lost() == 0
    for _ in range(6000):  # the queue holds 4,096, and a batch may be on its way
        telemetry.span("queue", PARENT).end()
    beyond = lost()
    assert 6000 - 4096 - 2 * 512 <= beyond <= 6000 - 4096
    deadline = time.monotonic() + 60
    while lost() == beyond:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    telemetry.close()


def test_a_span_may_have_begun_and_ended_a_while_ago_but_never_before_it_began() -> None:
    telemetry = telemetry_of()
    now_ns = time.time_ns()
    for number, begun_s, ended_s in ((1, 9.0, 4.0), (2, 3.0, 8.0)):
        telemetry.span("queue", PARENT, {"noria.request": number}, start_ago_s=begun_s).end(ago_s=ended_s)
    first, second = telemetry.answer_spans(TRACE)
    assert first["begin_ns"] == pytest.approx(now_ns - 9e9, abs=2e9)
    assert first["end_ns"] == pytest.approx(now_ns - 4e9, abs=2e9)
    assert second["end_ns"] == second["begin_ns"]


def test_a_span_begins_at_the_very_end_of_the_one_that_it_follows() -> None:
    telemetry = telemetry_of()
    before = telemetry.span("queue", PARENT, {"noria.request": 1}, start_ago_s=9)
    before.end(ago_s=3)
    telemetry.span("prefill", PARENT, {"noria.request": 1}, after=before).end()
    first, second = telemetry.answer_spans("1")
    assert second["begin_ns"] == first["end_ns"] == before.ended_ns


def test_a_span_keeps_a_bounded_number_of_events_and_links() -> None:
    telemetry = telemetry_of()
    span = telemetry.span(
        "step", PARENT, {"noria.request": 7}, links=[f"00-{each:032x}-{each:016x}-01" for each in range(1, 300)]
    )
    for _ in range(300):
        span.event("chunk")
    span.end()
    (shown,) = telemetry.answer_spans("7")
    assert (len(shown["events"]), shown["links"]) == (128, 128)


@PROTOCOLS
def test_a_span_arrives_at_a_collector_whole(protocol: str) -> None:
    with Collector() as collector:
        telemetry = telemetry_of(otlp_endpoint=collector.urls()[protocol], otlp_protocol=protocol)
        span = telemetry.span(
            "queue", PARENT, {"noria.request": 7}, server=True, links=(PARENT, "", PARENT[:-2] + "00")
        )
        span.event("chunk", {"noria.step": 3})
        span.end({"gen_ai.response.finish_reasons": ("stop", "length")}, error="it broke")
        unsampled = telemetry.span("queue", PARENT.removesuffix("01") + "00")
        assert unsampled.traceparent.startswith(f"00-{TRACE}-")
        assert unsampled.traceparent.endswith("-00")
        unsampled.end()
        telemetry.span("chunk", PARENT).end()
        telemetry.close()
    got, inner = collector.spans
    assert set(collector.taken) == {protocol}
    assert (got.service, got.name, got.trace, got.parent) == ("noria-scheduler", "queue", TRACE, "b7ad6b7169203331")
    assert f"00-{TRACE}-{got.span}-01" == span.traceparent
    assert got.server
    assert not inner.server
    assert got.error == "it broke"
    assert got.attributes == {"noria.request": 7, "gen_ai.response.finish_reasons": ("stop", "length")}
    assert got.events == [("chunk", {"noria.step": 3})]
    assert got.links == [(TRACE, "b7ad6b7169203331")]
    assert 0 < got.start <= got.end


def test_grpc_without_its_package_ends_the_start_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    telemetry_of(otlp_protocol="grpc").close()  # nothing is sent
    with pytest.raises(UserError, match=r"noria\[grpc\]"):
        telemetry_of(otlp_protocol="grpc", otlp_endpoint="http://127.0.0.1:4317")
