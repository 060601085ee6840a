"""Published values reach a collector as the registry describes them."""

import socket
import time

import pytest
from fakes.collector import Collector
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from noria.proto.base import Service
from noria.shared import instruments
from noria.shared.config import TelemetrySettings
from noria.shared.instruments import SCHEDULER_METRICS, Kind, Metric
from noria.shared.metrics import Value
from noria.shared.telemetry import Telemetry


def telemetry_to(endpoint: str) -> Telemetry:
    telemetry = Telemetry(Service.SCHEDULER, 1, TelemetrySettings(otlp_endpoint=endpoint))
    telemetry.declare(SCHEDULER_METRICS)
    return telemetry


def test_without_an_endpoint_values_go_nowhere() -> None:
    telemetry = telemetry_to("")
    telemetry.publish((Value(instruments.CACHE_EVICTIONS, 3),))
    assert not telemetry.enabled
    telemetry.close()


@pytest.mark.parametrize("metric", SCHEDULER_METRICS, ids=lambda metric: metric.name)
def test_a_metric_arrives_with_the_name_unit_and_kind_of_the_registry(metric: Metric) -> None:
    with Collector() as collector:
        telemetry = telemetry_to(collector.url)
        telemetry.publish((Value(metric, 7),))
        telemetry.close()
    assert list(collector.metrics) == [metric.name]
    sent = collector.metrics[metric.name]
    assert (sent.name, sent.unit, sent.description) == (metric.name, metric.unit, metric.description)
    assert sent.HasField("sum") == (metric.kind is Kind.COUNTER)
    assert sent.HasField("gauge") == (metric.kind is Kind.GAUGE)
    if metric.kind is Kind.COUNTER:
        assert sent.sum.is_monotonic
        assert sent.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert collector.latest(metric.name) == 7


def test_the_latest_values_are_exported_at_close_each_under_its_attributes() -> None:
    with Collector() as collector:
        telemetry = telemetry_to(collector.url)
        for out in (1, 5):
            telemetry.publish(
                (
                    Value(instruments.CACHE_SWAPS, out, ((instruments.ATTRIBUTE_DIRECTION, "out"),)),
                    Value(instruments.CACHE_SWAPS, 2, ((instruments.ATTRIBUTE_DIRECTION, "in"),)),
                )
            )
        telemetry.close()
    assert collector.latest("noria.cache.swaps", direction="out") == 5
    assert collector.latest("noria.cache.swaps", direction="in") == 2
    assert collector.reporters == {"noria-scheduler"}


def test_metric_names_are_declared_once() -> None:
    names = [each.name for each in SCHEDULER_METRICS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("listening", [False, True], ids=["refused", "silent"])
def test_a_collector_that_is_away_costs_its_time_once_for_spans_and_metrics(listening: bool) -> None:
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        if listening:
            collector.listen()
        telemetry = telemetry_to(f"http://127.0.0.1:{collector.getsockname()[1]}")
        telemetry.publish((Value(instruments.CACHE_EVICTIONS, 3),))
        telemetry.span("queue").end()
        begun = time.monotonic()
        telemetry.close()
        assert time.monotonic() - begun < 3.5, "one after the other would take four seconds"
