"""What metrics stand at: values, distributions, and the form in which one process tells another of them.

A process's thread alone counts; whoever wants the values asks it, so that all values of one answer belong to one moment.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from noria.shared.telemetry.instruments import METRICS, Metric

Attributes = tuple[tuple[str, str | int], ...]
OTHERS: Final = "other"


@dataclass(frozen=True, slots=True)
class MetricValue:
    """What a metric stands at, for one set of attributes.

    counts: of a histogram's buckets, the last without a bound; `number` is then the sum of what was observed.
    """

    metric: Metric
    number: float
    attributes: Attributes = ()
    counts: tuple[int, ...] = ()


class Histogram:
    """Counts what is observed of one metric, for one set of attributes."""

    __slots__ = ("_bounds", "counts", "metric", "total")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._bounds = metric.bounds
        self.counts = [0] * (len(metric.bounds) + 1)
        self.total = 0.0

    def observe(self, number: float, times: int = 1) -> None:
        """Count a number, perhaps several times."""
        self.counts[bisect_left(self._bounds, number)] += times
        self.total += number * times

    def value(self, attributes: Attributes = ()) -> MetricValue:
        """What it stands at."""
        return MetricValue(self.metric, self.total, attributes, tuple(self.counts))


class HistogramFamily:
    """The histograms of one metric by attributes, made when they are first needed."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._histograms: dict[tuple[str | int, ...], Histogram] = {}

    def observe(self, number: float, of: tuple[str | int, ...], times: int = 1) -> None:
        """Count a number under attributes, named in the order of the metric's."""
        histogram = self._histograms.get(of)
        if histogram is None:
            histogram = self._histograms[of] = Histogram(self._metric)
        histogram.observe(number, times)

    def values(self) -> Iterator[MetricValue]:
        """What they stand at."""
        for of, histogram in self._histograms.items():
            yield histogram.value(tuple(zip(self._metric.attributes, of, strict=True)))


class TenantLabels:
    """Bounds how many tenants have series of their own: the first `most` that are seen, for as long as the process lives.

    Series that begin late or end early would make counters jump, so that nobody gives a name up again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: dict[str, None] = {}

    def of(self, tenant: str) -> str:
        """What a tenant is called in metrics."""
        if tenant in self._named:
            return tenant
        if len(self._named) < self._most:
            self._named[tenant] = None
            return tenant
        return OTHERS


def merge_values(values: Iterable[MetricValue]) -> list[MetricValue]:
    """One value for each metric and attributes: several of the same, as those of `other` tenants, are added."""
    found: dict[tuple[str, Attributes], MetricValue] = {}
    for each in values:
        key = (each.metric.name, each.attributes)
        known = found.get(key)
        if known is None:
            found[key] = each
        else:
            counts = tuple(map(sum, zip(known.counts, each.counts, strict=True)))
            found[key] = MetricValue(each.metric, known.number + each.number, each.attributes, counts)
    return list(found.values())


class _EncodedValue(msgspec.Struct, array_like=True, frozen=True):
    """A value as one process tells another."""

    name: str
    number: float
    attributes: tuple[tuple[str, str | int], ...]
    counts: tuple[int, ...]


def encode_values(values: Iterable[MetricValue]) -> list[_EncodedValue]:
    """Values in the form of an answer."""
    return [_EncodedValue(each.metric.name, each.number, each.attributes, each.counts) for each in values]


def decode_values(answer: bytes) -> list[MetricValue]:
    """The values of an answer; metrics that are not known here, of another version, are left out."""
    found = msgspec.json.decode(answer, type=list[_EncodedValue] | None) or []
    return [MetricValue(METRICS[each.name], each.number, each.attributes, each.counts) for each in found if _fits(each)]


def _fits(each: _EncodedValue) -> bool:
    metric = METRICS.get(each.name)
    return metric is not None and len(each.counts) in (0, len(metric.bounds) + 1)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """The value below which a part of what was observed lies, as a line within its bucket; None when there is nothing."""
    total = sum(counts)
    if not total:
        return None
    wanted, seen = part * total, 0
    for place, count in enumerate(counts):
        if count and seen + count >= wanted:
            low = bounds[place - 1] if place else 0.0
            high = bounds[place] if place < len(bounds) else bounds[-1]
            return low + (high - low) * (wanted - seen) / count
        seen += count
    return bounds[-1]
