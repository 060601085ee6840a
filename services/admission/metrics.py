"""Metrics of admission: counts and latency histograms by traffic class and tenant.

All are read from one `AdmissionState`, whose counters the journal keeps: counts and histograms of the same streams agree, also after a
restart.
"""

from collections.abc import Iterator
from typing import Final

from noria.proto.base import End
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.tenants.class_totals import ClassTotals, StreamMeasure, UsageKey
from noria.shared.telemetry import instruments
from noria.shared.telemetry.instruments import Metric
from noria.shared.telemetry.metrics import Attributes, MetricValue, TenantLabels
from noria.shared.telemetry.spans import ATTRIBUTE_CLASS, ATTRIBUTE_CODE, ATTRIBUTE_END, ATTRIBUTE_TENANT
from noria.shared.telemetry.telemetry import MetricSource

_NS: Final = 1_000_000_000
# Each measure's metric, and how many of the measure's units are one of the metric's.
_MEASURED: Final[dict[StreamMeasure, tuple[Metric, int]]] = {
    StreamMeasure.QUEUE: (instruments.QUEUE_TIME, _NS),
    StreamMeasure.PREFILL: (instruments.PREFILL_TIME, _NS),
    StreamMeasure.FIRST_TOKEN: (instruments.FIRST_TOKEN_TIME, _NS),
    StreamMeasure.INTERVAL: (instruments.TOKEN_INTERVAL, _NS),
    StreamMeasure.DECODE: (instruments.DECODE_TIME, _NS),
    StreamMeasure.RECLAIM: (instruments.RECLAIM_TIME, _NS),
    StreamMeasure.WHOLE: (instruments.STREAM_TIME, _NS),
    StreamMeasure.PROMPT_TOKENS: (instruments.STREAM_PROMPT_TOKENS, 1),
    StreamMeasure.OUTPUT_TOKENS: (instruments.STREAM_OUTPUT_TOKENS, 1),
}


def bounds() -> dict[StreamMeasure, tuple[int, ...]]:
    """Where the buckets of each measure end, in its own units."""
    return {
        measure: tuple(round(bound * units) for bound in metric.bounds)
        for measure, (metric, units) in _MEASURED.items()
    }


class ClassMetrics(MetricSource):
    """Publishes admission's counters by class and tenant. tenants_max: how many tenants get labels of their own."""

    def __init__(self, state: AdmissionState, tenants_max: int) -> None:
        self._state = state
        self._labels = TenantLabels(tenants_max)

    def values(self) -> Iterator[MetricValue]:
        """Yields the current value of every metric."""
        totals, ledger = self._state.totals, self._state.ledger
        yield MetricValue(instruments.LEDGER_ACCEPTED, totals.accepted)
        for end, count in totals.ended.items():
            yield MetricValue(instruments.LEDGER_ENDED, count, ((ATTRIBUTE_END, end.label),))
        yield MetricValue(instruments.LEDGER_IN_FLIGHT, ledger.streams)
        in_flight = self._in_flight()
        for usage_key, class_totals in self._state.usage_counters.class_totals.items():
            whose = self._attributes(usage_key)
            yield MetricValue(instruments.STREAMS_IN_FLIGHT, in_flight[usage_key], whose)
            yield from _counts(class_totals, whose)
            yield from _distributions(class_totals, whose)
        yield MetricValue(instruments.CLIENTS, len(self._state.delivery.clients))
        yield MetricValue(instruments.RETAINED, len(ledger.requests) - len(ledger.live) - len(ledger.tokenizing))
        yield MetricValue(instruments.TOKENIZING, len(ledger.tokenizing))

    def _in_flight(self) -> dict[UsageKey, int]:
        counts = dict.fromkeys(self._state.usage_counters.class_totals, 0)
        for request in self._state.ledger.live.values():
            counts[self._state.usage_counters.of(request)] += request.unfinished
        return counts

    def _attributes(self, usage_key: UsageKey) -> Attributes:
        """Class and tenant as metrics call them."""
        return ((ATTRIBUTE_CLASS, usage_key.traffic_class), (ATTRIBUTE_TENANT, self._labels.of(usage_key.tenant)))


def _counts(class_totals: ClassTotals, whose: Attributes) -> Iterator[MetricValue]:
    used = class_totals.used
    yield MetricValue(instruments.STREAMS_ACCEPTED, class_totals.accepted, whose)
    for end, count in class_totals.ended.items():
        yield MetricValue(instruments.STREAMS_ENDED, count, (*whose, (ATTRIBUTE_END, end.label)))
    for code, count in class_totals.refused.items():
        yield MetricValue(instruments.REQUESTS_REFUSED, count, (*whose, (ATTRIBUTE_CODE, code.value)))
    yield MetricValue(instruments.TOKENS_GENERATED, class_totals.generated, whose)
    yield MetricValue(instruments.USED_PROMPT_TOKENS, used.prompt_tokens, whose)
    yield MetricValue(instruments.USED_CACHED_TOKENS, used.cached_tokens, whose)
    yield MetricValue(instruments.USED_OUTPUT_TOKENS, used.output_tokens, whose)
    yield MetricValue(instruments.USED_WASTED_TOKENS, used.wasted_tokens, whose)
    yield MetricValue(instruments.USED_CACHE, used.block_us, whose)


def _distributions(class_totals: ClassTotals, whose: Attributes) -> Iterator[MetricValue]:
    for measure_key, each in class_totals.measured.items():
        metric, units = _MEASURED[measure_key.measure]
        attributes = (*whose, (ATTRIBUTE_END, End(measure_key.end).label)) if measure_key.end else whose
        yield MetricValue(metric, each.total / units, attributes, tuple(each.counts))
