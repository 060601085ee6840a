"""Spans of steps: which ones are shown, in whose trace, and with which other traces they are linked.

Steps that admit a stream are always shown, of the others one in so many: which ones is counted, not drawn.
"""

from noria.proto.execution import StepPlan
from noria.shared.telemetry.spans import ATTRIBUTE_QUERY_TOKENS, ATTRIBUTE_STEP, ATTRIBUTE_TRACES, SPAN_STEP
from noria.shared.telemetry.telemetry import Telemetry


class StepSpans:
    """Knows whose trace is in which slot, and chooses the steps that get a span."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._every = 1.0 / telemetry.settings.step_ratio if telemetry.settings.step_ratio > 0 else 0.0
        self._since = 0.0
        self._slots: dict[int, str] = {}

    def follow(self, plan: StepPlan) -> None:
        """Take over the slots that a plan fills and releases."""
        if plan.number == 1:
            self._slots.clear()
        for slot in plan.release:
            self._slots.pop(slot, None)
        for fill in plan.fill:
            if fill.traceparent:
                self._slots[fill.slot] = fill.traceparent

    def links(self, plan: StepPlan, traceparent: str) -> tuple[str, ...] | None:
        """The contexts a step's span will be linked with; None when it is not to be shown."""
        if not traceparent or not self._telemetry.enabled:
            return None
        self._since += 1
        if not plan.fill and (not self._every or self._since < self._every):
            return None
        if not plan.fill:
            self._since -= self._every
        found = dict.fromkeys(self._slots[each.slot] for each in plan.slices if each.slot in self._slots)
        found.pop(traceparent, None)
        return tuple(found)

    def done(self, number: int, query_tokens: int, compute_us: int, traceparent: str, links: tuple[str, ...]) -> None:
        """Record the span of a step that has just been computed."""
        attributes = {ATTRIBUTE_STEP: number, ATTRIBUTE_QUERY_TOKENS: query_tokens, ATTRIBUTE_TRACES: len(links) + 1}
        span = self._telemetry.span(SPAN_STEP, traceparent, attributes, start_ago_s=compute_us / 1e6, links=links)
        span.end()
