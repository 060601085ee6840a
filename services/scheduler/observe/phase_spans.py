"""The spans of each request in the scheduler: `queue`, `prefill` and `decode`, one after the other, with events."""

from dataclasses import dataclass
from typing import Final

from noria.proto.base import Stream
from noria.services.scheduler.core.interface.events import RequestPhase, StreamPhaseChanged
from noria.services.scheduler.core.state.scheduler_view import SchedulerView
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
    """The span of a stream's present phase. again: it waits once more."""

    phase: RequestPhase
    span: Span
    again: bool


class PhaseSpans:
    """One open span for each stream, replaced at each new phase. Without telemetry nothing is kept."""

    def __init__(self, telemetry: Telemetry, view: SchedulerView) -> None:
        self._telemetry = telemetry
        self._view = view
        self._open: dict[Stream, _OpenSpan] = {}
        self._chunks: dict[Stream, list[tuple[int, int, int]]] = {}
        self._recorded = 0

    def phase_changed(self, change: StreamPhaseChanged, now_ns: int) -> None:
        """End the stream's span and begin that of its next phase, both at the time of the change."""
        if not self._telemetry.enabled:
            return
        before = self._open.pop(change.stream, None)
        again = before is not None and change.phase is RequestPhase.QUEUED and bool(change.decision)
        ago_s = (now_ns - change.at_ns) / 1e9
        if before is not None:
            self._end(before, change, now_ns, again=again)
        name = _NAMES.get(change.phase)
        if name is None:
            return
        after = before.span if before is not None else NO_SPAN
        span = self._telemetry.span(name, change.traceparent, self._attributes(change), start_ago_s=ago_s, after=after)
        if again:
            span.event(spans.EVENT_PREEMPTED, {spans.ATTRIBUTE_REASON: change.decision}, ago_s=ago_s)
        elif change.phase is RequestPhase.QUEUED and change.output_tokens:
            span.event(spans.EVENT_RECOVERED, {spans.ATTRIBUTE_OUTPUT_TOKENS: change.output_tokens}, ago_s=ago_s)
        self._recorded += span.recorded
        self._open[change.stream] = _OpenSpan(change.phase, span, again)

    def step_sent(self) -> None:
        """Remember which part of whose prompt the step holds that was just sent."""
        if not self._recorded:
            return
        decision = self._view.last_decision
        assert decision is not None
        for stream, tokens in decision.chunks:
            kept = self._open.get(stream)
            if kept is not None and kept.span.recorded:
                self._chunks.setdefault(stream, []).append((decision.number, tokens, decision.at_ns))

    def close(self) -> None:
        """End all open spans: the process stops."""
        for kept in self._open.values():
            kept.span.end({spans.ATTRIBUTE_DECISION: "stopped"})
        self._open.clear()
        self._chunks.clear()

    def _end(self, before: _OpenSpan, change: StreamPhaseChanged, now_ns: int, *, again: bool) -> None:
        span = before.span
        self._recorded -= span.recorded
        outcome: dict[str, Attribute] = {spans.ATTRIBUTE_OUTPUT_TOKENS: change.output_tokens}
        if change.decision:
            outcome[spans.ATTRIBUTE_DECISION] = change.decision
        if before.phase is not RequestPhase.QUEUED or change.phase is RequestPhase.ENDED:
            # A change is replied after the steps planned meanwhile: chunks belong to the span that ends here.
            for number, tokens, at_ns in self._chunks.pop(change.stream, ()):
                chunk: dict[str, Attribute] = {spans.ATTRIBUTE_STEP: number, spans.ATTRIBUTE_QUERY_TOKENS: tokens}
                span.event(spans.EVENT_CHUNK, chunk, ago_s=(now_ns - at_ns) / 1e9)
        elif before.again and change.phase is RequestPhase.PREFILLING:
            span.event(spans.EVENT_RESUMED, ago_s=(now_ns - change.at_ns) / 1e9)
        if again:
            span.event(spans.EVENT_PREEMPTED, {spans.ATTRIBUTE_REASON: change.decision})
        span.end(outcome, ago_s=(now_ns - change.at_ns) / 1e9)

    def _attributes(self, change: StreamPhaseChanged) -> dict[str, Attribute]:
        attributes: dict[str, Attribute] = {
            spans.ATTRIBUTE_REQUEST: change.stream.request,
            spans.ATTRIBUTE_CHOICE: change.stream.choice,
        }
        request = self._view.request(change.stream)
        if change.phase is RequestPhase.PREFILLING and request is not None:
            attributes[spans.ATTRIBUTE_CACHED_TOKENS] = request.cached_tokens
        return attributes
