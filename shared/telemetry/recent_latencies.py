"""Latencies of the last minute by class, from the histograms that admission counts since it began."""

from collections import deque
from collections.abc import Iterable
from typing import Final

from noria.shared.telemetry import instruments
from noria.shared.telemetry.instruments import Metric
from noria.shared.telemetry.metrics import MetricValue, quantile
from noria.shared.telemetry.spans import ATTRIBUTE_CLASS, ATTRIBUTE_END

_WINDOW_S: Final = 60.0
_QUANTILES: Final = (0.5, 0.95, 0.99)
_MEASURES: Final[dict[str, Metric]] = {
    "queue": instruments.QUEUE_TIME,
    "first_token": instruments.FIRST_TOKEN_TIME,
    "interval": instruments.TOKEN_INTERVAL,
    "total": instruments.STREAM_TIME,
}
_LEDGER: Final = (instruments.LEDGER_ACCEPTED, instruments.LEDGER_ENDED, instruments.LEDGER_IN_FLIGHT)
Counts = dict[tuple[str, str], tuple[int, ...]]


class RecentLatencies:
    """Latency quantiles of the last minute. ledger: the latest counts of streams accepted, ended by reason, and in flight."""

    def __init__(self) -> None:
        self.ledger: dict[str, float] = {}
        self._snapshots: deque[tuple[float, Counts]] = deque()

    def add(self, values: Iterable[MetricValue], now_s: float) -> None:
        """Add the values of admission's metrics at a time in seconds of any monotonic clock."""
        counts: Counts = {}
        names = {metric.name: name for name, metric in _MEASURES.items()}
        self.ledger = {}
        for value in values:
            attributes = dict(value.attributes)
            name = names.get(value.metric.name)
            if name is not None:
                for traffic_class in ("", str(attributes[ATTRIBUTE_CLASS])):
                    key = (name, traffic_class)
                    known = counts.get(key, (0,) * len(value.counts))
                    counts[key] = tuple(map(sum, zip(known, value.counts, strict=True)))
            elif value.metric in _LEDGER:
                end = attributes.get(ATTRIBUTE_END)
                self.ledger[str(end) if end else value.metric.name.rpartition(".")[2]] = value.number
        self._snapshots.append((now_s, counts))
        while len(self._snapshots) > 1 and now_s - self._snapshots[1][0] >= _WINDOW_S:
            self._snapshots.popleft()

    def rows(self) -> list[dict[str, str | int | float | None]]:
        """One row for each measure and class ("" is all): count and p50, p95, p99 of the last minute, in milliseconds."""
        if not self._snapshots:
            return []
        (since_s, before), (now_s, now) = self._snapshots[0], self._snapshots[-1]
        young = now_s - since_s < _WINDOW_S
        rows: list[dict[str, str | int | float | None]] = []
        for (name, traffic_class), counts in now.items():
            old = before.get((name, traffic_class), (0,) * len(counts))
            lately = tuple(max(0, each - then) for each, then in zip(counts, old, strict=True))
            # Before a minute has been seen there may be nothing new: then what there was since the beginning.
            chosen = counts if young and not sum(lately) else lately
            row: dict[str, str | int | float | None] = {"of": name, "class": traffic_class, "count": sum(chosen)}
            for part in _QUANTILES:
                found = quantile(_MEASURES[name].bounds, chosen, part)
                row[f"p{round(part * 100)}"] = None if found is None else round(found * 1e3, 2)
            rows.append(row)
        return rows
