"""All open streams: tokens in, texts out, and what is asked for when something is missing.

Takes tokens strictly in order of output position: what is known is dropped, a gap is asked for once, a stream that is
not open is reported. News of all streams gathers until `collect`, which a shell calls once per turn. Knows no clock, no
socket and no tokenizer.
"""

from dataclasses import dataclass
from typing import Final, assert_never

from noria.proto.base import End, Ended, Stream
from noria.proto.output import Gap, Open, Opening, Resend, TextRun, TokenRun, Tokens
from noria.proto.token_runs import RunStatus, StreamPosition
from noria.services.detokenizer.core.output_stream import StreamText
from noria.services.detokenizer.core.vocabulary import Vocabulary

ENDED_REMEMBERED_MAX: Final = 4096
UNKNOWN_REMEMBERED_MAX: Final = 65536
# An answer overtakes at most the runs of the steps in flight; so many later and it is lost.
_ASK_AGAIN_AFTER: Final = 16


@dataclass(frozen=True, slots=True)
class SchedulerJoined:
    """The scheduler began a new life: what it was asked for must be asked for again."""


@dataclass(frozen=True, slots=True)
class AdmissionJoined:
    """Admission began a new life, or was missed: it opens its streams anew, and those that it does not have ended."""


Event = Open | Tokens | Ended | Resend | SchedulerJoined | AdmissionJoined


@dataclass(frozen=True, slots=True)
class News:
    """What one turn has to say. texts and unknown go to admission, gaps and seen to the scheduler."""

    texts: tuple[TextRun, ...] = ()
    unknown: tuple[Stream, ...] = ()
    gaps: tuple[Gap, ...] = ()
    seen: tuple[Gap, ...] = ()


class Detokenizer:
    """The core. Events are messages as they arrive; `collect` gives the turn's news; `check` states the invariants."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._streams: dict[Stream, StreamText] = {}
        # Ended streams: the scheduler may still send tokens of a step that was under way. Oldest first.
        self._ended: dict[Stream, None] = {}
        # Streams reported unknown and not opened since.
        self._unknown: dict[Stream, None] = {}
        # Gaps asked for and not closed yet, with the number of runs that have come in vain since.
        self._asked: dict[Stream, int] = {}
        self._changed: dict[Stream, None] = {}
        self._report_unknown: dict[Stream, None] = {}
        self._ask: dict[Stream, None] = {}
        self._seen: dict[Stream, None] = {}
        # Streams that admission has not named since it joined.
        self._unnamed: dict[Stream, None] = {}
        self.tokens = 0

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def holds(self, stream: Stream) -> bool:
        """Whether a stream is open."""
        return stream in self._streams

    def apply(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Tokens():
                for run in event.runs:
                    self._take(run)
            case Open():
                self._open_all(event)
            case Ended():
                for stream in event.streams:
                    self._forget(stream)
            case Resend():
                for gap in event.gaps:
                    self._rewind(gap)
            case SchedulerJoined():
                self._ask_for_everything()
            case AdmissionJoined():
                self._unnamed = dict.fromkeys(self._streams)
            case _:
                assert_never(event)

    def collect(self) -> News:
        """Return the news since the last call, one entry per stream and kind."""
        texts = tuple(self._streams[stream].report() for stream in self._changed)
        gaps = tuple(Gap(stream, len(self._streams[stream].ids)) for stream in self._ask)
        seen = tuple(Gap(stream, len(self._streams[stream].ids)) for stream in self._seen)
        unknown = tuple(self._report_unknown)
        for gathered in (self._changed, self._ask, self._seen, self._report_unknown):
            gathered.clear()
        return News(texts, unknown, gaps, seen)

    def put_back(self, news: News) -> None:
        """Take back news that could not be sent; the next `collect` returns it again, with what has come since."""
        for run in news.texts:
            if (held := self._streams.get(run.stream)) is not None and held.attempt == run.attempt:
                held.unreport(run)
                self._changed[run.stream] = None
        self._report_unknown.update((stream, None) for stream in news.unknown if stream not in self._streams)
        self._ask.update((gap.stream, None) for gap in news.gaps if gap.stream in self._streams)
        self._seen.update((gap.stream, None) for gap in news.seen if gap.stream in self._streams)

    def check(self) -> None:
        """Assert what must hold between any two events."""
        for stream, held in self._streams.items():
            assert held.stream == stream
            assert stream not in self._ended and stream not in self._unknown and stream not in self._report_unknown
            assert stream in self._changed or not held.news
            held.check()
        for gathered in (self._changed, self._ask, self._seen, self._asked, self._unnamed):
            assert gathered.keys() <= self._streams.keys()
        assert self._report_unknown.keys() <= self._unknown.keys()
        assert len(self._ended) <= ENDED_REMEMBERED_MAX and len(self._unknown) <= UNKNOWN_REMEMBERED_MAX

    def _take(self, run: TokenRun) -> None:
        held = self._streams.get(run.stream)
        if held is None:
            if run.stream not in self._ended:
                self._remember(self._unknown, run.stream, UNKNOWN_REMEMBERED_MAX)
                self._report_unknown[run.stream] = None
            return
        if held.ending is not None:
            return
        fit = StreamPosition(held.attempt, len(held.ids)).fit(run.attempt, run.start)
        match fit.status:
            case RunStatus.OUTDATED:
                return
            case RunStatus.MISSING_IDS | RunStatus.MISSING_TEXT:
                self._ask_for(held)
                return
            case RunStatus.RESTARTS:
                held.truncate(run.attempt, run.start)
                self._changed[run.stream] = None
            case RunStatus.CONTINUES:
                pass
            case _:
                assert_never(fit.status)
        self._asked.pop(run.stream, None)
        new = run.ids[fit.known_ids :]
        end = End(run.end) if run.end else None
        if not new and end is None:
            if held.opening.stop:
                # A scheduler that tells what is known here does not know how far this is, and may wait to hear it.
                self._seen[run.stream] = None
            return
        held.cached_tokens = run.cached_tokens or held.cached_tokens
        held.queue_us = run.queue_us or held.queue_us
        held.extend(new, end, run.detail, run.likelihoods[fit.known_ids :])
        self.tokens += len(new)
        self._changed[run.stream] = None
        if held.opening.stop:
            self._seen[run.stream] = None

    def _open_all(self, message: Open) -> None:
        for opening in message.openings:
            self._open(opening)
        if message.complete:
            for stream in tuple(self._unnamed):
                self._forget(stream)

    def _open(self, opening: Opening) -> None:
        stream = opening.stream
        self._unnamed.pop(stream, None)
        held = self._streams.get(stream)
        if held is not None and opening.attempt < held.attempt:
            return
        known = len(opening.output_ids)
        if (
            held is not None
            and opening.attempt == held.attempt
            and tuple(held.ids[:known]) == opening.output_ids
            and len(held.ids) >= known
        ):
            # Admission opens again what is open: it lacks whatever is beyond its own ids.
            held.catch_up(known, opening.characters)
        else:
            # Tokens may have come while it was not open here, or open as an attempt that had ended: they were dropped.
            missed = held is not None or stream in self._ended or stream in self._unknown
            held = self._streams[stream] = StreamText(opening, self._vocabulary)
            self._ended.pop(stream, None)
            self._report_unknown.pop(stream, None)
            self._asked.pop(stream, None)
            if opening.output_ids or missed:
                self._asked[stream] = 0
                self._ask[stream] = None
            self._unknown.pop(stream, None)
        if held.news:
            self._changed[stream] = None
        else:
            self._changed.pop(stream, None)
        if opening.stop and opening.output_ids:
            self._seen[stream] = None

    def _forget(self, stream: Stream) -> None:
        self._streams.pop(stream, None)
        for gathered in (
            self._asked,
            self._changed,
            self._ask,
            self._seen,
            self._unknown,
            self._report_unknown,
            self._unnamed,
        ):
            gathered.pop(stream, None)
        self._remember(self._ended, stream, ENDED_REMEMBERED_MAX)

    def _rewind(self, gap: Gap) -> None:
        held = self._streams.get(gap.stream)
        if held is None:
            self._remember(self._unknown, gap.stream, UNKNOWN_REMEMBERED_MAX)
            self._report_unknown[gap.stream] = None
            return
        held.rewind(gap.start)
        if held.news:
            self._changed[gap.stream] = None

    def _ask_for(self, held: StreamText) -> None:
        vain = self._asked.get(held.stream)
        if vain is None or vain >= _ASK_AGAIN_AFTER:
            self._asked[held.stream] = 0
            self._ask[held.stream] = None
        else:
            self._asked[held.stream] = vain + 1

    def _ask_for_everything(self) -> None:
        for stream, held in self._streams.items():
            if held.ending is None:
                self._asked[stream] = 0
                self._ask[stream] = None
                if held.opening.stop:
                    self._seen[stream] = None

    def _remember(self, memory: dict[Stream, None], stream: Stream, limit: int) -> None:
        memory[stream] = None
        if len(memory) > limit:
            oldest = next(iter(memory))
            del memory[oldest]
            if memory is self._unknown:
                self._report_unknown.pop(oldest, None)
