"""What became of each request lately, in plain words: what it waited for, when, and for how long.

Follows the phases of every stream and reads the record of decisions. Bounded: of streams that ended the last TIMELINES_KEPT are
remembered. Decides nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from noria.proto.base import Stream
from noria.services.scheduler.core.interface.events import RequestPhase, StreamPhaseChanged
from noria.services.scheduler.core.state.scheduler_view import RequestView, SchedulerView

TIMELINES_KEPT: Final = 2048
_BACK: Final = {
    "swap": "gave way to others; its cache went to the host",
    "reset": "gave way to others; its cache is computed again",
    "epoch": "the executor began anew; its cache is computed again",
}


@dataclass(slots=True, eq=False)
class RequestTimeline:
    """One stream's phases, oldest first, with who and what it is."""

    stream: Stream
    traffic_class: str = ""
    tenant: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    changes: list[StreamPhaseChanged] = field(default_factory=list)


class RequestHistory:
    """The timelines of a scheduler's streams."""

    def __init__(self, view: SchedulerView) -> None:
        self._view = view
        self._timelines: dict[Stream, RequestTimeline] = {}
        self._over: dict[Stream, None] = {}

    def phase_changed(self, change: StreamPhaseChanged) -> None:
        """Add a stream's new phase to its timeline."""
        timeline = self._timelines.get(change.stream)
        if timeline is None:
            timeline = self._timelines[change.stream] = RequestTimeline(change.stream)
        request = self._view.request(change.stream)
        if request is not None:
            _describe(timeline, request)
        timeline.changes.append(change)
        if change.phase is RequestPhase.ENDED:
            self._over[change.stream] = None
            if len(self._over) > TIMELINES_KEPT:
                oldest = next(iter(self._over))
                del self._over[oldest], self._timelines[oldest]
        else:
            self._over.pop(change.stream, None)

    def answer(self, about: str, now_ns: int) -> dict[str, list[str]]:
        """The timelines of all streams of a request, named by its number, as lines of text."""
        number = int(about) if about.isdecimal() else -1
        found = [timeline for stream, timeline in self._timelines.items() if stream.request == number]
        return {"why": [line for timeline in found for line in self.lines_of(timeline, now_ns)]}

    def answer_phases(self, about: str, now_ns: int) -> list[dict[str, object]]:
        """The phases of all streams of a request, named by its number, in milliseconds since its first."""
        number = int(about) if about.isdecimal() else -1
        return [
            {
                "choice": stream.choice,
                "class": timeline.traffic_class,
                "tenant": timeline.tenant,
                "prompt_tokens": timeline.prompt_tokens,
                "cached_tokens": timeline.cached_tokens,
                "age_ms": (now_ns - timeline.changes[0].at_ns) / 1e6,
                "moves": [
                    {
                        "stage": change.phase.name.lower(),
                        "at_ms": (change.at_ns - timeline.changes[0].at_ns) / 1e6,
                        "output_tokens": change.output_tokens,
                        "why": change.decision,
                    }
                    for change in timeline.changes
                ],
            }
            for stream, timeline in self._timelines.items()
            if stream.request == number and timeline.changes
        ]

    def about(self, stream: Stream) -> RequestTimeline | None:
        """One stream's timeline; None when it is not remembered."""
        return self._timelines.get(stream)

    def lines_of(self, timeline: RequestTimeline, now_ns: int) -> list[str]:
        """A timeline in plain words; times count from the receipt of the request."""
        changes = timeline.changes
        if not changes:
            return []
        start_ns = changes[0].at_ns
        of = f" of tenant {timeline.tenant}" if timeline.tenant else ""
        kind = f", class {timeline.traffic_class}" if timeline.traffic_class else ""
        lines = [
            f"request {timeline.stream.request}, choice {timeline.stream.choice}{of}{kind}: {timeline.prompt_tokens} prompt tokens"
        ]
        for place, change in enumerate(changes):
            until_ns = changes[place + 1].at_ns if place + 1 < len(changes) else now_ns
            lines += self._phase_lines(timeline, change, start_ns, until_ns, over=place + 1 < len(changes))
        return lines

    def _phase_lines(
        self, timeline: RequestTimeline, change: StreamPhaseChanged, start_ns: int, until_ns: int, *, over: bool
    ) -> Iterator[str]:
        at = f"{(change.at_ns - start_ns) / 1e6:9.1f} ms  "
        spent_ms = (until_ns - change.at_ns) / 1e6
        so_far = "" if over else " so far"
        match change.phase:
            case RequestPhase.QUEUED:
                back = f"{_BACK[change.decision]}; " if change.decision in _BACK else ""
                yield f"{at}{back}waited {spent_ms:.1f} ms{so_far}"
                waits = self._view.waits(timeline.traffic_class, change.at_ns, until_ns)
                for reason, wait_ns in sorted(waits.items(), key=lambda item: -item[1]):
                    text = reason.text if reason is not None else "the next step, or those before it in the queue"
                    yield f"{'':13}  {wait_ns / 1e6:.1f} ms for {text}"
            case RequestPhase.PREFILLING:
                cached = f", {timeline.cached_tokens} of them from the cache" if timeline.cached_tokens else ""
                yield f"{at}its prompt was computed{cached}, for {spent_ms:.1f} ms{so_far}"
            case RequestPhase.DECODING:
                yield f"{at}had its first token and went on for {spent_ms:.1f} ms{so_far}"
            case RequestPhase.ENDED:
                yield f"{at}ended: {change.decision}, after {change.output_tokens} tokens"


def _describe(timeline: RequestTimeline, request: RequestView) -> None:
    timeline.traffic_class = request.traffic_class
    timeline.tenant = request.tenant
    timeline.prompt_tokens = request.prompt_tokens
    timeline.cached_tokens = request.cached_tokens
