"""The scheduler's part of each request's trace: `queue`, `prefill` and `decode`, one after the other."""

from typing import Final

from noria.proto.base import Stream
from noria.services.scheduler.core.events import Moved, Stage
from noria.shared import instruments
from noria.shared.telemetry import Span, Telemetry

_NAMES: Final = {
    Stage.QUEUED: instruments.SPAN_QUEUE,
    Stage.PREFILLING: instruments.SPAN_PREFILL,
    Stage.DECODING: instruments.SPAN_DECODE,
}


class StageSpans:
    """One open span per stream, replaced at each move. Without telemetry nothing is kept."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open: dict[Stream, Span] = {}

    def move(self, moved: Moved, now_ns: int) -> None:
        """End the stream's span and begin that of its next stage, both at the time of the move."""
        if not self._telemetry.enabled:
            return
        span = self._open.pop(moved.stream, None)
        if span is not None:
            outcome: dict[str, int | str] = {instruments.ATTRIBUTE_OUTPUT_TOKENS: moved.output_tokens}
            if moved.decision:
                outcome[instruments.ATTRIBUTE_DECISION] = moved.decision
            span.end(outcome)
        name = _NAMES.get(moved.stage)
        if name is not None:
            self._open[moved.stream] = self._telemetry.span(
                name,
                moved.traceparent,
                {
                    instruments.ATTRIBUTE_REQUEST: moved.stream.request,
                    instruments.ATTRIBUTE_CHOICE: moved.stream.choice,
                },
                start_ago_s=(now_ns - moved.at_ns) / 1e9,
            )

    def close(self) -> None:
        """End what is open: the process stops."""
        for span in self._open.values():
            span.end({instruments.ATTRIBUTE_DECISION: "stopped"})
        self._open.clear()
