"""The detokenizer's metrics: open streams and tokens decoded."""

from collections.abc import Iterator

from noria.services.detokenizer.core.detokenizer import Detokenizer
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.telemetry import MetricSource


class DetokenizerMetrics(MetricSource):
    """Reports the metrics of one detokenizer core."""

    def __init__(self, core: Detokenizer) -> None:
        self._core = core

    def values(self) -> Iterator[MetricValue]:
        """The current values of all metrics."""
        yield MetricValue(instruments.TEXT_STREAMS, self._core.streams)
        yield MetricValue(instruments.TEXT_TOKENS, self._core.tokens)
