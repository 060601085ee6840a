"""The scheduler's part of each request's trace: `queue`, `prefill` and `decode`, one after the other, with what happened."""

from dataclasses import dataclass
from typing import Final

from noria.proto.base import Stream
from noria.services.scheduler.core.interface.events import PhaseChanged, RequestPhase
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.shared.telemetry import spans
from noria.shared.telemetry.telemetry import Attribute, Span, Telemetry
from noria.shared.telemetry.tracing import NO_SPAN

_NAMES: Final = {
    RequestPhase.QUEUED: spans.SPAN_QUEUE,
    RequestPhase.PREFILLING: spans.SPAN_PREFILL,
    RequestPhase.DECODING: spans.SPAN_DECODE,
}


@dataclass(slots=True, eq=False)
class _OpenSpan:
    """A stream's open span. again: it waits once more."""

    stage: RequestPhase
    span: Span
    again: bool


class PhaseSpans:
    """One open span per stream, replaced at each move. Without telemetry nothing is kept."""

    def __init__(self, telemetry: Telemetry, board: SchedulerState) -> None:
        self._telemetry = telemetry
        self._board = board
        self._open: dict[Stream, _OpenSpan] = {}
        self._chunks: dict[Stream, list[tuple[int, int, int]]] = {}
        self._recorded = 0

    def move(self, moved: PhaseChanged, now_ns: int) -> None:
        """End the stream's span and begin that of its next stage, both at the time of the move."""
        if not self._telemetry.enabled:
            return
        before = self._open.pop(moved.stream, None)
        again = before is not None and moved.stage is RequestPhase.QUEUED and bool(moved.decision)
        ago_s = (now_ns - moved.at_ns) / 1e9
        if before is not None:
            self._end(before, moved, now_ns, again=again)
        name = _NAMES.get(moved.stage)
        if name is None:
            return
        after = before.span if before is not None else NO_SPAN
        span = self._telemetry.span(name, moved.traceparent, self._attributes(moved), start_ago_s=ago_s, after=after)
        if again:
            span.event(spans.EVENT_PREEMPTED, {spans.ATTRIBUTE_REASON: moved.decision}, ago_s=ago_s)
        elif moved.stage is RequestPhase.QUEUED and moved.output_tokens:
            span.event(spans.EVENT_RECOVERED, {spans.ATTRIBUTE_OUTPUT_TOKENS: moved.output_tokens}, ago_s=ago_s)
        self._recorded += span.recorded
        self._open[moved.stream] = _OpenSpan(moved.stage, span, again)

    def planned(self) -> None:
        """A step was sent: remember which part of whose prompt it holds."""
        if not self._recorded:
            return
        decision = self._board.decisions.steps[-1]
        for stream, tokens in decision.chunks:
            kept = self._open.get(stream)
            if kept is not None and kept.span.recorded:
                self._chunks.setdefault(stream, []).append((decision.number, tokens, decision.at_ns))

    def close(self) -> None:
        """End what is open: the process stops."""
        for kept in self._open.values():
            kept.span.end({spans.ATTRIBUTE_DECISION: "stopped"})
        self._open.clear()
        self._chunks.clear()

    def _end(self, before: _OpenSpan, moved: PhaseChanged, now_ns: int, *, again: bool) -> None:
        span = before.span
        self._recorded -= span.recorded
        outcome: dict[str, Attribute] = {spans.ATTRIBUTE_OUTPUT_TOKENS: moved.output_tokens}
        if moved.decision:
            outcome[spans.ATTRIBUTE_DECISION] = moved.decision
        if before.stage is not RequestPhase.QUEUED or moved.stage is RequestPhase.ENDED:
            # A move is heard of after the steps planned meanwhile: chunks belong to the span that ends here.
            for number, tokens, at_ns in self._chunks.pop(moved.stream, ()):
                chunk: dict[str, Attribute] = {spans.ATTRIBUTE_STEP: number, spans.ATTRIBUTE_QUERY_TOKENS: tokens}
                span.event(spans.EVENT_CHUNK, chunk, ago_s=(now_ns - at_ns) / 1e9)
        elif before.again and moved.stage is RequestPhase.PREFILLING:
            span.event(spans.EVENT_RESUMED, ago_s=(now_ns - moved.at_ns) / 1e9)
        if again:
            span.event(spans.EVENT_PREEMPTED, {spans.ATTRIBUTE_REASON: moved.decision})
        span.end(outcome, ago_s=(now_ns - moved.at_ns) / 1e9)

    def _attributes(self, moved: PhaseChanged) -> dict[str, Attribute]:
        attributes: dict[str, Attribute] = {
            spans.ATTRIBUTE_REQUEST: moved.stream.request,
            spans.ATTRIBUTE_CHOICE: moved.stream.choice,
        }
        request = self._board.requests.get(moved.stream)
        if moved.stage is RequestPhase.PREFILLING and request is not None:
            attributes[spans.ATTRIBUTE_CACHED_TOKENS] = request.cached_tokens
        return attributes
