"""What admission's books stand at, as metrics by class and tenant, and how long everything took.

All of it is read from one state of the books, which is on record: counts and distributions of the same things agree, in this
life and the next.
"""

from collections.abc import Iterator
from typing import Final

from noria.proto.base import End
from noria.services.admission.core.state.admission_state import Books
from noria.services.admission.core.tenants.class_totals import Account, Measure, Traffic
from noria.shared.telemetry import instruments
from noria.shared.telemetry.instruments import Metric
from noria.shared.telemetry.metrics import Attributes, MetricValue, TenantLabels
from noria.shared.telemetry.spans import ATTRIBUTE_CLASS, ATTRIBUTE_CODE, ATTRIBUTE_END, ATTRIBUTE_TENANT
from noria.shared.telemetry.telemetry import MetricSource

_NS: Final = 1_000_000_000
# Each measure's metric, and how many of the measure's units are one of the metric's.
_MEASURED: Final[dict[Measure, tuple[Metric, int]]] = {
    Measure.QUEUE: (instruments.QUEUE_TIME, _NS),
    Measure.PREFILL: (instruments.PREFILL_TIME, _NS),
    Measure.FIRST_TOKEN: (instruments.FIRST_TOKEN_TIME, _NS),
    Measure.INTERVAL: (instruments.TOKEN_INTERVAL, _NS),
    Measure.DECODE: (instruments.DECODE_TIME, _NS),
    Measure.RECLAIM: (instruments.RECLAIM_TIME, _NS),
    Measure.WHOLE: (instruments.STREAM_TIME, _NS),
    Measure.PROMPT_TOKENS: (instruments.STREAM_PROMPT_TOKENS, 1),
    Measure.OUTPUT_TOKENS: (instruments.STREAM_OUTPUT_TOKENS, 1),
}


def bounds() -> dict[Measure, tuple[int, ...]]:
    """Where the buckets of each measure end, in its own units."""
    return {
        measure: tuple(round(bound * units) for bound in metric.bounds)
        for measure, (metric, units) in _MEASURED.items()
    }


class TrafficMetrics(MetricSource):
    """Metrics of the books. tenants_max: how many tenants have figures of their own."""

    def __init__(self, books: Books, tenants_max: int) -> None:
        self._books = books
        self._labels = TenantLabels(tenants_max)

    def values(self) -> Iterator[MetricValue]:
        """What they stand at."""
        totals, ledger = self._books.totals, self._books.ledger
        yield MetricValue(instruments.LEDGER_ACCEPTED, totals.accepted)
        for end, count in totals.ended.items():
            yield MetricValue(instruments.LEDGER_ENDED, count, ((ATTRIBUTE_END, end.label),))
        yield MetricValue(instruments.LEDGER_IN_FLIGHT, ledger.streams)
        in_flight = self._in_flight()
        for account, traffic in self._books.accounts.traffic.items():
            whose = self._attributes(account)
            yield MetricValue(instruments.STREAMS_IN_FLIGHT, in_flight[account], whose)
            yield from _counts(traffic, whose)
            yield from _distributions(traffic, whose)
        yield MetricValue(instruments.CLIENTS, len(self._books.delivery.clients))
        yield MetricValue(instruments.RETAINED, len(ledger.requests) - len(ledger.live) - len(ledger.tokenizing))
        yield MetricValue(instruments.TOKENIZING, len(ledger.tokenizing))

    def _in_flight(self) -> dict[Account, int]:
        counts = dict.fromkeys(self._books.accounts.traffic, 0)
        for request in self._books.ledger.live.values():
            counts[self._books.accounts.of(request)] += request.unfinished
        return counts

    def _attributes(self, account: Account) -> Attributes:
        """Class and tenant as metrics call them."""
        return ((ATTRIBUTE_CLASS, account.traffic_class), (ATTRIBUTE_TENANT, self._labels.of(account.tenant)))


def _counts(traffic: Traffic, whose: Attributes) -> Iterator[MetricValue]:
    used = traffic.used
    yield MetricValue(instruments.STREAMS_ACCEPTED, traffic.accepted, whose)
    for end, count in traffic.ended.items():
        yield MetricValue(instruments.STREAMS_ENDED, count, (*whose, (ATTRIBUTE_END, end.label)))
    for code, count in traffic.refused.items():
        yield MetricValue(instruments.REQUESTS_REFUSED, count, (*whose, (ATTRIBUTE_CODE, code.value)))
    yield MetricValue(instruments.TOKENS_GENERATED, traffic.generated, whose)
    yield MetricValue(instruments.USED_PROMPT_TOKENS, used.prompt_tokens, whose)
    yield MetricValue(instruments.USED_CACHED_TOKENS, used.cached_tokens, whose)
    yield MetricValue(instruments.USED_OUTPUT_TOKENS, used.output_tokens, whose)
    yield MetricValue(instruments.USED_WASTED_TOKENS, used.wasted_tokens, whose)
    yield MetricValue(instruments.USED_CACHE, used.block_us, whose)


def _distributions(traffic: Traffic, whose: Attributes) -> Iterator[MetricValue]:
    for series, each in traffic.measured.items():
        metric, units = _MEASURED[series.measure]
        attributes = (*whose, (ATTRIBUTE_END, End(series.end).label)) if series.end else whose
        yield MetricValue(metric, each.total / units, attributes, tuple(each.counts))
