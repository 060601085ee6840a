"""What the detokenizer's core stands at, as metrics."""

from collections.abc import Iterator

from noria.services.detokenizer.core.detokenizer import Detokenizer
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import MetricValue
from noria.shared.telemetry.telemetry import MetricSource


class TextMetrics(MetricSource):
    """Metrics of a core."""

    def __init__(self, core: Detokenizer) -> None:
        self._core = core

    def values(self) -> Iterator[MetricValue]:
        """What they stand at."""
        yield MetricValue(instruments.TEXT_STREAMS, self._core.streams)
        yield MetricValue(instruments.TEXT_TOKENS, self._core.tokens)
