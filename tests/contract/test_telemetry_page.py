"""docs/telemetry.md says what the registry holds, and the registry holds together."""

import re

from fakes.scripts import script

from noria.services.gateway.monitoring.exposition import ALIASES
from noria.shared.telemetry import instruments, spans
from noria.shared.telemetry.instruments import METRICS, MetricKind

NAME = re.compile(r"[a-z][a-z0-9]*([._][a-z0-9]+)*")


def test_the_telemetry_page_is_current() -> None:
    generator = script("docs/generate_telemetry.py")
    assert generator.PAGE.read_text() == generator.page(), "run `python docs/generate_telemetry.py`"


def test_every_declared_metric_is_in_the_registry_once() -> None:
    declared = [each for each in vars(instruments).values() if isinstance(each, instruments.Metric)]
    assert len({each.name for each in declared}) == len(declared)
    assert {each.name for each in declared} == set(METRICS)
    assert len({each.exposed for each in declared}) == len(declared)


def test_metrics_have_good_names_known_attributes_and_rising_buckets() -> None:
    for metric in METRICS.values():
        assert NAME.fullmatch(metric.name), metric.name
        assert metric.description.endswith("."), metric.name
        assert set(metric.attributes) <= set(spans.ATTRIBUTES), metric.name
        assert (metric.kind is MetricKind.HISTOGRAM) is bool(metric.bounds), metric.name
        assert list(metric.bounds) == sorted(set(metric.bounds)), metric.name


def test_spans_name_known_attributes_events_and_parents() -> None:
    names = {each.name for each in spans.SPANS}
    for span in spans.SPANS:
        assert set(span.attributes) <= set(spans.ATTRIBUTES), span.name
        assert set(span.events) <= set(spans.EVENTS), span.name
        assert set(span.parents) <= names, span.name


def test_aliases_sum_metrics_of_one_kind_with_the_same_buckets() -> None:
    for alias in ALIASES:
        assert len({(each.kind, each.bounds) for each in alias.sources}) == 1, alias.name
