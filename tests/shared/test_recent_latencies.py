"""Latencies of the last minute, from counts that only grow."""

import pytest

from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import Histogram, MetricValue
from noria.shared.telemetry.recent_latencies import RecentLatencies

BATCH = (("noria.class", "batch"), ("noria.tenant", "acme"))


def stands(histogram: Histogram) -> list[MetricValue]:
    return [
        histogram.value(BATCH),
        MetricValue(instruments.LEDGER_ACCEPTED, 5),
        MetricValue(instruments.LEDGER_IN_FLIGHT, 2),
    ]


def row(latency: RecentLatencies, traffic_class: str) -> dict[str, str | int | float | None]:
    (found,) = (each for each in latency.rows() if each["of"] == "first_token" and each["class"] == traffic_class)
    return found


def test_what_is_more_than_a_minute_old_does_not_count() -> None:
    latency, histogram = RecentLatencies(), Histogram(instruments.FIRST_TOKEN_TIME)
    assert latency.rows() == []
    histogram.observe(50.0, 100)
    latency.add(stands(histogram), 0.0)
    assert row(latency, "batch")["count"] == 100, "there is nothing newer"
    histogram.observe(0.008, 10)
    latency.add(stands(histogram), 30.0)
    found = row(latency, "batch")
    assert found["count"] == 10
    assert isinstance(found["p95"], float) and 5.0 <= found["p95"] <= 10.0
    histogram.observe(0.3, 1)
    latency.add(stands(histogram), 95.0)
    assert row(latency, "")["count"] == 1
    latency.add(stands(histogram), 200.0)
    latency.add(stands(histogram), 261.0)
    assert (row(latency, "")["count"], row(latency, "")["p50"]) == (0, None), "nothing happened in this minute"


def test_counts_that_began_anew_are_not_taken_for_less_than_nothing() -> None:
    latency = RecentLatencies()
    for number, times, at_s in ((0.1, 5, 0.0), (0.1, 7, 70.0), (0.1, 1, 90.0)):
        histogram = Histogram(instruments.FIRST_TOKEN_TIME)
        histogram.observe(number, times)
        latency.add([histogram.value(BATCH)], at_s)
    assert row(latency, "batch")["count"] == 0
    latency.add([MetricValue(instruments.LEDGER_ACCEPTED, 5)], 91.0)
    latency.add([MetricValue(instruments.LEDGER_IN_FLIGHT, 5)], 92.0)
    assert latency.ledger == {"in_flight": 5}, "what was not told is not shown"


def test_classes_and_tenants_are_added_up_for_all() -> None:
    latency, histogram = RecentLatencies(), Histogram(instruments.FIRST_TOKEN_TIME)
    histogram.observe(0.1, 3)
    other = (("noria.class", "standard"), ("noria.tenant", "beta"))
    latency.add([histogram.value(BATCH), histogram.value(other)], 0.0)
    assert [row(latency, name)["count"] for name in ("", "batch", "standard")] == [6, 3, 3]


def test_the_ledgers_terms_are_named_as_they_are_read() -> None:
    latency = RecentLatencies()
    ended = MetricValue(instruments.LEDGER_ENDED, 3, (("noria.end", "stop"),))
    latency.add([MetricValue(instruments.LEDGER_ACCEPTED, 5), ended, MetricValue(instruments.LEDGER_IN_FLIGHT, 2)], 0.0)
    assert latency.ledger == pytest.approx({"accepted": 5, "stop": 3, "in_flight": 2})
