"""Values reach a collector, and whoever asks, as the registry describes them."""

import socket
import time
from collections.abc import Iterable
from typing import Literal

import msgspec
import pytest
from fakes.collector import Collector
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from noria.proto.base import Service
from noria.shared.config.config import TelemetrySettings
from noria.shared.telemetry import instruments
from noria.shared.telemetry.instruments import METRICS, Metric, MetricKind
from noria.shared.telemetry.metrics import (
    Histogram,
    HistogramFamily,
    MetricValue,
    TenantLabels,
    decode_values,
    encode_values,
    merge_values,
    quantile,
)
from noria.shared.telemetry.spans import ATTRIBUTE_DIRECTION
from noria.shared.telemetry.telemetry import MetricSource, Telemetry

SECOND_NS = 1_000_000_000
LATENCY = instruments.FIRST_TOKEN_TIME


class Fixed(MetricSource):
    """Tells what it is given."""

    def __init__(self, *given: MetricValue) -> None:
        self.given: Iterable[MetricValue] = given

    def values(self) -> Iterable[MetricValue]:
        return self.given


def telemetry_to(
    endpoint: str,
    *values: MetricValue,
    metrics: bool = True,
    protocol: Literal["http/protobuf", "grpc"] = "http/protobuf",
) -> Telemetry:
    settings = TelemetrySettings(otlp_endpoint=endpoint, otlp_protocol=protocol, otlp_metrics=metrics)
    telemetry = Telemetry(Service.SCHEDULER, 1, settings)
    telemetry.add(Fixed(*values))
    return telemetry


def sample(metric: Metric) -> MetricValue:
    counts = tuple(range(len(metric.bounds) + 1)) if metric.bounds else ()
    return MetricValue(metric, 7, (), counts)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_metrics_arrive_with_the_name_unit_and_kind_of_the_registry(
    protocol: Literal["http/protobuf", "grpc"],
) -> None:
    with Collector() as collector:
        telemetry_to(collector.urls()[protocol], *map(sample, METRICS.values()), protocol=protocol).close()
    assert set(collector.taken) == {protocol}
    assert set(collector.metrics) == set(METRICS)
    for metric in METRICS.values():
        sent = collector.metrics[metric.name]
        assert (sent.name, sent.unit, sent.description) == (metric.name, metric.unit, metric.description)
        assert sent.HasField("sum") == (metric.kind is MetricKind.COUNTER)
        assert sent.HasField("gauge") == (metric.kind is MetricKind.GAUGE)
        assert sent.HasField("histogram") == (metric.kind is MetricKind.HISTOGRAM)
        if metric.kind is MetricKind.COUNTER:
            assert sent.sum.is_monotonic
            assert sent.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        if metric.kind is MetricKind.HISTOGRAM:
            (point,) = sent.histogram.data_points
            assert tuple(point.explicit_bounds) == metric.bounds
            assert list(point.bucket_counts) == list(range(len(metric.bounds) + 1))
            assert (point.count, point.sum) == (sum(point.bucket_counts), 7)
        else:
            assert collector.latest(metric.name) == 7


def test_values_are_handed_to_the_exporter_once_a_second_and_at_the_end() -> None:
    with Collector() as collector:
        telemetry = Telemetry(Service.SCHEDULER, 1, TelemetrySettings(otlp_endpoint=collector.url))
        asked = 0

        class Counting(MetricSource):
            def values(self) -> Iterable[MetricValue]:
                nonlocal asked
                asked += 1
                return (MetricValue(instruments.CACHE_EVICTIONS, asked),)

        telemetry.add(Counting())
        for now_ns in (0, 1, SECOND_NS - 1, SECOND_NS, SECOND_NS + 1):
            telemetry.advance(now_ns)
        assert asked == 2
        telemetry.close()
    assert collector.latest("noria.cache.evictions") == 3
    assert collector.reporters == {"noria-scheduler"}


def test_what_goes_on_from_an_earlier_life_is_exported_as_counted_since_then() -> None:
    with Collector() as collector:
        counts = [MetricValue(each, 3) for each in (instruments.LEDGER_ACCEPTED, instruments.CACHE_EVICTIONS)]
        telemetry = telemetry_to(collector.url, *counts)
        telemetry.continue_since([instruments.LEDGER_ACCEPTED], 4711)
        telemetry.close()
    began = {name: sent.sum.data_points[0].start_time_unix_nano for name, sent in collector.metrics.items()}
    assert began["noria.ledger.accepted"] == 4711
    assert time.time_ns() - 60 * SECOND_NS < began["noria.cache.evictions"] < time.time_ns()


def test_nobody_counts_for_an_exporter_that_is_not_there() -> None:
    class Never(MetricSource):
        def values(self) -> Iterable[MetricValue]:
            raise AssertionError

    for telemetry in (telemetry_to("", metrics=True), telemetry_to("http://127.0.0.1:9", metrics=False)):
        telemetry.add(Never())
        telemetry.advance(SECOND_NS)


def test_values_are_exported_each_under_its_attributes() -> None:
    swaps = [
        MetricValue(instruments.CACHE_SWAPS, number, ((ATTRIBUTE_DIRECTION, way),))
        for way, number in (("out", 5), ("in", 2))
    ]
    with Collector() as collector:
        telemetry_to(collector.url, *swaps).close()
    assert collector.latest("noria.cache.swaps", direction="out") == 5
    assert collector.latest("noria.cache.swaps", direction="in") == 2


def test_an_answer_holds_what_was_asked_for_and_unknown_metrics_are_left_out_of_it() -> None:
    values = [sample(each) for each in METRICS.values()]
    answer = msgspec.json.encode(encode_values(values))
    assert decode_values(answer) == values
    assert decode_values(msgspec.json.encode([["noria.of.tomorrow", 1.0, [], []]])) == []
    assert decode_values(msgspec.json.encode([[LATENCY.name, 1.0, [], [1, 2]]])) == [], "of another number of buckets"
    assert decode_values(b"null") == []


def test_a_histogram_counts_into_the_bucket_that_holds_a_number_its_upper_bound_included() -> None:
    histogram = Histogram(LATENCY)
    for number in (0.0, LATENCY.bounds[0], LATENCY.bounds[1], LATENCY.bounds[-1] + 1):
        histogram.observe(number)
    histogram.observe(LATENCY.bounds[1], 3)
    counts = histogram.value().counts
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 4, 1, 7)
    assert histogram.value().number == pytest.approx(LATENCY.bounds[0] + 4 * LATENCY.bounds[1] + LATENCY.bounds[-1] + 1)


def test_histograms_are_kept_apart_by_attributes_in_the_metrics_order() -> None:
    histograms = HistogramFamily(LATENCY)
    histograms.observe(0.1, ("interactive", "one"))
    histograms.observe(0.2, ("interactive", "two"), 2)
    found = {each.attributes: sum(each.counts) for each in histograms.values()}
    one, two = ((("noria.class", "interactive"), ("noria.tenant", name)) for name in ("one", "two"))
    assert found == {one: 1, two: 2}


def test_tenants_beyond_the_bound_share_a_name_and_nobody_loses_one() -> None:
    labels = TenantLabels(2)
    assert [labels.of(each) for each in ("a", "b", "c", "a", "d", "b")] == ["a", "b", "other", "a", "other", "b"]


def test_values_of_the_same_metric_and_attributes_are_added() -> None:
    one = MetricValue(LATENCY, 1.5, (("noria.class", "x"),), (1, 2))
    other = MetricValue(LATENCY, 1.0, (("noria.class", "y"),), (1, 1))
    assert merge_values([one, other, one]) == [MetricValue(LATENCY, 3.0, (("noria.class", "x"),), (2, 4)), other]


def test_a_quantile_lies_on_a_line_within_its_bucket() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile(bounds, (0, 10, 0, 0), 0.5) == 1.5
    assert quantile(bounds, (0, 0, 4, 0), 1.0) == 4.0
    assert quantile(bounds, (0, 0, 0, 4), 0.5) == 4.0, "nothing is known beyond the last bound"
    assert quantile(bounds, (0, 0, 0, 0), 0.5) is None


@pytest.mark.parametrize("listening", [False, True], ids=["refused", "silent"])
def test_a_collector_that_is_away_costs_its_time_once_for_spans_and_metrics(listening: bool) -> None:
    def closing_s() -> float:
        with socket.socket() as collector:
            collector.bind(("127.0.0.1", 0))
            if listening:
                collector.listen()
            telemetry = telemetry_to(
                f"http://127.0.0.1:{collector.getsockname()[1]}", MetricValue(instruments.CACHE_EVICTIONS, 3)
            )
            telemetry.span("queue").end()
            begun = time.monotonic()
            telemetry.close()
            return time.monotonic() - begun

    # One after the other takes four seconds however fast the machine is; a busy one may need a moment more than two.
    assert any(closing_s() < 3.5 for _ in range(3)), "spans and metrics wait for each other"
