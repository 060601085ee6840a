"""Tracing: spans of this process, kept for a while and handed to an exporter where there is one; one trace per request.

Trace context is W3C `traceparent`, in message headers and in the bodies that open a stream. Who begins a trace decides
whether it is recorded, by its id, so that all processes agree; the others follow the flag.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from noria.shared.telemetry.spans import ATTRIBUTE_REQUEST

Attribute = str | int | float | bool | tuple[str, ...]
_EVENTS_MAX: Final = 128
_LINKS_MAX: Final = 128
_RATIO_BITS: Final = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class SpanRecord:
    """The recorded data of a span.

    Times are nanoseconds since 1970; end_ns is 0 while it is under way. error: what went wrong, or empty.
    """

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    begin_ns: int
    end_ns: int = 0
    server: bool = False
    error: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)
    events: list[tuple[str, int, dict[str, Attribute]]] = field(default_factory=list)
    links: list[tuple[int, int]] = field(default_factory=list)


class Span:
    """A span under way. `traceparent` is what its children name; without a record nothing but the context is passed on.

    ended_ns: when it ended, in Unix time; 0 before, and where nothing is kept of it.
    """

    __slots__ = ("_ended", "_record", "ended_ns", "traceparent")

    def __init__(
        self, record: SpanRecord | None, traceparent: str, ended: Callable[[SpanRecord], None] | None = None
    ) -> None:
        self._record = record
        self._ended = ended
        self.ended_ns = 0
        self.traceparent = traceparent

    @property
    def recorded(self) -> bool:
        """Whether anything is kept of it."""
        return self._record is not None

    def set(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes."""
        if self._record is not None:
            self._record.attributes.update(attributes)

    def event(self, name: str, attributes: Mapping[str, Attribute] | None = None, *, ago_s: float = 0.0) -> None:
        """Note that something happened within the span, perhaps a while ago; a span has `_EVENTS_MAX` at most."""
        if self._record is not None and len(self._record.events) < _EVENTS_MAX:
            at_ns = max(time.time_ns() - int(ago_s * 1e9), self._record.begin_ns)
            self._record.events.append((name, at_ns, dict(attributes or {})))

    def end(self, attributes: Mapping[str, Attribute] | None = None, *, error: str = "", ago_s: float = 0.0) -> None:
        """Finish the span, now or a while ago; again changes nothing."""
        record = self._record
        if record is None:
            return
        record.attributes.update(attributes or {})
        record.error = error
        self.ended_ns = record.end_ns = max(time.time_ns() - int(ago_s * 1e9), record.begin_ns)
        self._record = None
        if self._ended is not None:
            self._ended(record)


NO_SPAN: Final = Span(None, "")


class Tracer:
    """Makes spans. ratio: of new traces recorded. kept: how many finished spans are remembered for `noria trace`."""

    def __init__(self, ratio: float, kept: int, export: Callable[[SpanRecord], None] | None) -> None:
        self._bound = round(ratio * _RATIO_BITS)
        self._export = export
        self._random = random.Random()  # noqa: S311 - names, not secrets
        self._open: dict[int, SpanRecord] = {}
        self._recent: deque[SpanRecord] = deque(maxlen=kept)
        self.enabled = export is not None or kept > 0

    def span(
        self,
        name: str,
        traceparent: str,
        attributes: Mapping[str, Attribute] | None,
        *,
        start_ago_s: float = 0.0,
        after: Span = NO_SPAN,
        server: bool = False,
        links: Iterable[str] = (),
    ) -> Span:
        """Begin a span under the given parent, or a new trace; `start_ago_s` backdates what is known only afterwards.

        after: the span that it follows, at whose end it begins.
        """
        if not self.enabled:
            return Span(None, traceparent)
        trace_id, parent_id, sampled = parse_traceparent(traceparent)
        if not trace_id:
            trace_id = self._random.getrandbits(128) or 1
            sampled = (trace_id & _RATIO_BITS) <= self._bound and self._bound > 0
        span_id = self._random.getrandbits(64) or 1
        context = f"00-{trace_id:032x}-{span_id:016x}-{sampled:02x}"
        if not sampled:
            return Span(None, context)
        record = SpanRecord(
            name,
            trace_id,
            span_id,
            parent_id,
            after.ended_ns or time.time_ns() - int(start_ago_s * 1e9),
            server=server,
            attributes=dict(attributes or {}),
        )
        for each in links:
            linked_trace, linked_span, linked_sampled = parse_traceparent(each)
            if linked_sampled and len(record.links) < _LINKS_MAX:
                record.links.append((linked_trace, linked_span))
        self._open[span_id] = record
        return Span(record, context, self._ended)

    def spans_of(self, name: str) -> list[dict[str, Any]]:
        """Spans of the trace of this id, or of that of the request of this number, in a form fit for JSON."""
        found = [*self._recent, *self._open.values()]
        if name.isdecimal() and len(name) < 32:
            traces = {each.trace_id for each in found if each.attributes.get(ATTRIBUTE_REQUEST) == int(name)}
        else:
            traces = {parse_traceparent(f"00-{name}-{'0' * 15}1-01")[0]} - {0}
        return [_shown(each) for each in found if each.trace_id in traces]

    def _ended(self, record: SpanRecord) -> None:
        self._open.pop(record.span_id, None)
        self._recent.append(record)
        if self._export is not None:
            self._export(record)


def parse_traceparent(traceparent: str) -> tuple[int, int, bool]:
    """Trace id, span id and whether it is recorded; zeros when there is no valid context."""
    parts = traceparent.split("-")
    if len(parts) < 4 or len(parts[0]) != 2 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return 0, 0, False
    try:
        trace_id, span_id, flags = int(parts[1], 16), int(parts[2], 16), int(parts[3], 16)
    except ValueError:
        return 0, 0, False
    return (trace_id, span_id, bool(flags & 1)) if trace_id and span_id else (0, 0, False)


def trace_id(traceparent: str) -> str:
    """The trace's id as logs and tools name it; empty when there is none."""
    found = parse_traceparent(traceparent)[0]
    return f"{found:032x}" if found else ""


def _shown(record: SpanRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "trace": f"{record.trace_id:032x}",
        "span": f"{record.span_id:016x}",
        "parent": f"{record.parent_id:016x}" if record.parent_id else "",
        "begin_ns": record.begin_ns,
        "end_ns": record.end_ns,
        "error": record.error,
        "attributes": record.attributes,
        "events": record.events,
        "links": len(record.links),
    }
