"""Spans pass their trace on, and a collector that is away holds nobody up."""

import socket
import time

import pytest

from noria.proto.base import Service
from noria.shared.config import TelemetrySettings
from noria.shared.telemetry import Telemetry

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def test_without_an_endpoint_a_span_only_passes_its_parents_context_on() -> None:
    telemetry = Telemetry(Service.SCHEDULER, 1, TelemetrySettings())
    span = telemetry.span("queue", PARENT)
    assert not telemetry.enabled
    assert span.traceparent == PARENT
    span.event("reset")
    span.end({"noria.end": "stop"}, error="nothing happens")
    telemetry.close()


@pytest.mark.parametrize("listening", [False, True], ids=["refused", "silent"])
def test_a_collector_that_is_away_does_not_hold_up_the_end_of_a_process(listening: bool) -> None:
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        if listening:
            collector.listen()
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        telemetry = Telemetry(Service.SCHEDULER, 1, TelemetrySettings(otlp_endpoint=endpoint))
        span = telemetry.span("queue", PARENT)
        assert span.traceparent.startswith(f"00-{TRACE}-")
        assert span.traceparent != PARENT
        span.end()
        begun = time.monotonic()
        telemetry.close()
        assert time.monotonic() - begun < 5


def test_a_trace_that_its_caller_did_not_sample_is_not_recorded_but_passed_on() -> None:
    telemetry = Telemetry(Service.SCHEDULER, 1, TelemetrySettings(otlp_endpoint="http://127.0.0.1:9"))
    span = telemetry.span("queue", PARENT.removesuffix("01") + "00")
    assert span.traceparent.startswith(f"00-{TRACE}-")
    assert span.traceparent.endswith("-00")
    span.end()
    begun = time.monotonic()
    telemetry.close()
    assert time.monotonic() - begun < 1, "something was exported"
