"""What the detokenizer's core stands at, as metrics."""

from collections.abc import Iterator

from noria.services.detokenizer.core.detokenizer import Detokenizer
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import Value
from noria.shared.telemetry.telemetry import Publication


class TextMetrics(Publication):
    """Metrics of a core."""

    def __init__(self, core: Detokenizer) -> None:
        self._core = core

    def values(self) -> Iterator[Value]:
        """What they stand at."""
        yield Value(instruments.TEXT_STREAMS, self._core.streams)
        yield Value(instruments.TEXT_TOKENS, self._core.tokens)
