"""Values of metrics: counters, gauges and histograms, and the form in which one process sends them to another.

Only a process's own thread counts; others ask it for the values, so that all values of one answer belong to one moment.
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
    """The current value of a metric for one set of attributes.

    counts: of a histogram's buckets, the last without an upper bound; `number` is then the sum of all observations.
    """

    metric: Metric
    number: float
    attributes: Attributes = ()
    counts: tuple[int, ...] = ()


class Histogram:
    """A histogram of one metric for one set of attributes."""

    __slots__ = ("_bounds", "counts", "metric", "total")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._bounds = metric.bounds
        self.counts = [0] * (len(metric.bounds) + 1)
        self.total = 0.0

    def observe(self, number: float, times: int = 1) -> None:
        """Count an observation `times` times."""
        self.counts[bisect_left(self._bounds, number)] += times
        self.total += number * times

    def value(self, attributes: Attributes = ()) -> MetricValue:
        """The current value."""
        return MetricValue(self.metric, self.total, attributes, tuple(self.counts))


class HistogramFamily:
    """The histograms of one metric, one for each set of attributes, made when first observed."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._histograms: dict[tuple[str | int, ...], Histogram] = {}

    def observe(self, number: float, of: tuple[str | int, ...], times: int = 1) -> None:
        """Count an observation. of: values of the metric's attributes, in their order."""
        histogram = self._histograms.get(of)
        if histogram is None:
            histogram = self._histograms[of] = Histogram(self._metric)
        histogram.observe(number, times)

    def values(self) -> Iterator[MetricValue]:
        """Yield the current value of each histogram."""
        for of, histogram in self._histograms.items():
            yield histogram.value(tuple(zip(self._metric.attributes, of, strict=True)))


class TenantLabels:
    """Labels for tenants, of which only the first `most` get their own name for the life of the process.

    A series that began late or ended early would make counters jump, so that no label is given up again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: dict[str, None] = {}

    def of(self, tenant: str) -> str:
        """The label of a tenant in metrics: its name, or `other`."""
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
    """A `MetricValue` as it is sent between processes."""

    name: str
    number: float
    attributes: tuple[tuple[str, str | int], ...]
    counts: tuple[int, ...]


def encode_values(values: Iterable[MetricValue]) -> list[_EncodedValue]:
    """Convert values to the form in which they are sent, fit for JSON."""
    return [_EncodedValue(each.metric.name, each.number, each.attributes, each.counts) for each in values]


def decode_values(answer: bytes) -> list[MetricValue]:
    """Decode the JSON of an answer; metrics unknown to this version are left out."""
    found = msgspec.json.decode(answer, type=list[_EncodedValue] | None) or []
    return [MetricValue(METRICS[each.name], each.number, each.attributes, each.counts) for each in found if _fits(each)]


def _fits(each: _EncodedValue) -> bool:
    metric = METRICS.get(each.name)
    return metric is not None and len(each.counts) in (0, len(metric.bounds) + 1)


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """The `part` quantile (0 to 1) of a histogram, interpolated linearly within its bucket; None when it is empty."""
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
