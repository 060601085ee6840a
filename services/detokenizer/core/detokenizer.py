"""The detokenizer's core: turns the tokens of all open streams into text, and requests tokens that are missing.

Takes tokens strictly in order of output position: known ones are dropped, a gap is requested once, a stream that is not
open is reported. Output of all streams gathers until `collect`, which the shell calls once per turn. Knows no clock, no
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
# An answer to a request comes at most a few runs later, those of steps in flight; after so many it counts as lost.
_ASK_AGAIN_AFTER: Final = 16


@dataclass(frozen=True, slots=True)
class SchedulerConnected:
    """The scheduler connected anew: every open stream's tokens must be requested again."""


@dataclass(frozen=True, slots=True)
class AdmissionConnected:
    """Admission connected anew: it opens its unfinished streams again, and all others have ended."""


DetokenizerEvent = Open | Tokens | Ended | Resend | SchedulerConnected | AdmissionConnected


@dataclass(frozen=True, slots=True)
class TurnOutput:
    """The output of one turn: texts and unknown streams for admission, gaps and progress for the scheduler."""

    texts: tuple[TextRun, ...] = ()
    unknown: tuple[Stream, ...] = ()
    gaps: tuple[Gap, ...] = ()
    progress: tuple[Gap, ...] = ()


class Detokenizer:
    """The text of all open streams: `apply` takes messages, `collect` returns the turn's output, `check` asserts invariants."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._streams: dict[Stream, StreamText] = {}
        # Ended streams, oldest first: the scheduler may still send tokens of a step in flight.
        self._ended: dict[Stream, None] = {}
        # Streams reported unknown and not opened since.
        self._unknown: dict[Stream, None] = {}
        # Streams with a requested gap, and the number of runs beyond the gap that have come since the request.
        self._open_gaps: dict[Stream, int] = {}
        self._texts_to_report: dict[Stream, None] = {}
        self._unknown_to_report: dict[Stream, None] = {}
        self._gaps_to_request: dict[Stream, None] = {}
        self._progress_to_report: dict[Stream, None] = {}
        # Streams that admission has not named since it joined.
        self._not_reopened: dict[Stream, None] = {}
        self.tokens = 0

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def is_open(self, stream: Stream) -> bool:
        """Whether a stream is open."""
        return stream in self._streams

    def apply(self, event: DetokenizerEvent) -> None:
        """Apply one message or connection event."""
        match event:
            case Tokens():
                for run in event.runs:
                    self._apply_run(run)
            case Open():
                self._open_all(event)
            case Ended():
                for stream in event.streams:
                    self._close_stream(stream)
            case Resend():
                for gap in event.gaps:
                    self._rewind(gap)
            case SchedulerConnected():
                self._request_everything()
            case AdmissionConnected():
                self._not_reopened = dict.fromkeys(self._streams)
            case _:
                assert_never(event)

    def collect(self) -> TurnOutput:
        """Return the output since the last call, one entry per stream and kind."""
        texts = tuple(self._streams[stream].report() for stream in self._texts_to_report)
        gaps = tuple(Gap(stream, len(self._streams[stream].ids)) for stream in self._gaps_to_request)
        progress = tuple(Gap(stream, len(self._streams[stream].ids)) for stream in self._progress_to_report)
        unknown = tuple(self._unknown_to_report)
        for collection in (
            self._texts_to_report,
            self._gaps_to_request,
            self._progress_to_report,
            self._unknown_to_report,
        ):
            collection.clear()
        return TurnOutput(texts, unknown, gaps, progress)

    def put_back(self, output: TurnOutput) -> None:
        """Take back output that could not be sent; the next `collect` returns it again, with what has come since."""
        for run in output.texts:
            if (stream_text := self._streams.get(run.stream)) is not None and stream_text.attempt == run.attempt:
                stream_text.restore_report(run)
                self._texts_to_report[run.stream] = None
        self._unknown_to_report.update((stream, None) for stream in output.unknown if stream not in self._streams)
        self._gaps_to_request.update((gap.stream, None) for gap in output.gaps if gap.stream in self._streams)
        self._progress_to_report.update((gap.stream, None) for gap in output.progress if gap.stream in self._streams)

    def check(self) -> None:
        """Check the invariants that hold between any two events. Raises AssertionError."""
        for stream, stream_text in self._streams.items():
            assert stream_text.stream == stream
            assert stream not in self._ended and stream not in self._unknown and stream not in self._unknown_to_report
            assert stream in self._texts_to_report or not stream_text.has_unreported
            stream_text.check()
        for collection in (
            self._texts_to_report,
            self._gaps_to_request,
            self._progress_to_report,
            self._open_gaps,
            self._not_reopened,
        ):
            assert collection.keys() <= self._streams.keys()
        assert self._unknown_to_report.keys() <= self._unknown.keys()
        assert len(self._ended) <= ENDED_REMEMBERED_MAX and len(self._unknown) <= UNKNOWN_REMEMBERED_MAX

    def _apply_run(self, run: TokenRun) -> None:
        stream_text = self._streams.get(run.stream)
        if stream_text is None:
            if run.stream not in self._ended:
                self._remember(self._unknown, run.stream, UNKNOWN_REMEMBERED_MAX)
                self._unknown_to_report[run.stream] = None
            return
        if stream_text.ending is not None:
            return
        fit = StreamPosition(stream_text.attempt, len(stream_text.ids)).fit(run.attempt, run.start)
        match fit.status:
            case RunStatus.OUTDATED:
                return
            case RunStatus.MISSING_IDS | RunStatus.MISSING_TEXT:
                self._request_gap(stream_text)
                return
            case RunStatus.RESTARTS:
                stream_text.truncate(run.attempt, run.start)
                self._texts_to_report[run.stream] = None
            case RunStatus.CONTINUES:
                pass
            case _:
                assert_never(fit.status)
        self._open_gaps.pop(run.stream, None)
        new = run.ids[fit.known_ids :]
        end = End(run.end) if run.end else None
        if not new and end is None:
            if stream_text.opening.stop:
                # A scheduler that tells what is known here does not know how far this is, and may wait to hear it.
                self._progress_to_report[run.stream] = None
            return
        stream_text.cached_tokens = run.cached_tokens or stream_text.cached_tokens
        stream_text.queue_us = run.queue_us or stream_text.queue_us
        stream_text.extend(new, end, run.detail, run.likelihoods[fit.known_ids :])
        self.tokens += len(new)
        self._texts_to_report[run.stream] = None
        if stream_text.opening.stop:
            self._progress_to_report[run.stream] = None

    def _open_all(self, message: Open) -> None:
        for opening in message.openings:
            self._open(opening)
        if message.complete:
            for stream in tuple(self._not_reopened):
                self._close_stream(stream)

    def _open(self, opening: Opening) -> None:
        stream = opening.stream
        self._not_reopened.pop(stream, None)
        stream_text = self._streams.get(stream)
        if stream_text is not None and opening.attempt < stream_text.attempt:
            return
        known = len(opening.output_ids)
        if (
            stream_text is not None
            and opening.attempt == stream_text.attempt
            and tuple(stream_text.ids[:known]) == opening.output_ids
            and len(stream_text.ids) >= known
        ):
            # Admission opens a stream that is open here: it lacks whatever is beyond its own ids.
            stream_text.resume_from(known, opening.characters)
        else:
            # Tokens may have come while it was not open here, or open as an attempt that had ended: they were dropped.
            missed = stream_text is not None or stream in self._ended or stream in self._unknown
            stream_text = self._streams[stream] = StreamText(opening, self._vocabulary)
            self._ended.pop(stream, None)
            self._unknown_to_report.pop(stream, None)
            self._open_gaps.pop(stream, None)
            if opening.output_ids or missed:
                self._open_gaps[stream] = 0
                self._gaps_to_request[stream] = None
            self._unknown.pop(stream, None)
        if stream_text.has_unreported:
            self._texts_to_report[stream] = None
        else:
            self._texts_to_report.pop(stream, None)
        if opening.stop and opening.output_ids:
            self._progress_to_report[stream] = None

    def _close_stream(self, stream: Stream) -> None:
        self._streams.pop(stream, None)
        for collection in (
            self._open_gaps,
            self._texts_to_report,
            self._gaps_to_request,
            self._progress_to_report,
            self._unknown,
            self._unknown_to_report,
            self._not_reopened,
        ):
            collection.pop(stream, None)
        self._remember(self._ended, stream, ENDED_REMEMBERED_MAX)

    def _rewind(self, gap: Gap) -> None:
        stream_text = self._streams.get(gap.stream)
        if stream_text is None:
            self._remember(self._unknown, gap.stream, UNKNOWN_REMEMBERED_MAX)
            self._unknown_to_report[gap.stream] = None
            return
        stream_text.rewind(gap.start)
        if stream_text.has_unreported:
            self._texts_to_report[gap.stream] = None

    def _request_gap(self, stream_text: StreamText) -> None:
        runs_since = self._open_gaps.get(stream_text.stream)
        if runs_since is None or runs_since >= _ASK_AGAIN_AFTER:
            self._open_gaps[stream_text.stream] = 0
            self._gaps_to_request[stream_text.stream] = None
        else:
            self._open_gaps[stream_text.stream] = runs_since + 1

    def _request_everything(self) -> None:
        for stream, stream_text in self._streams.items():
            if stream_text.ending is None:
                self._open_gaps[stream] = 0
                self._gaps_to_request[stream] = None
                if stream_text.opening.stop:
                    self._progress_to_report[stream] = None

    def _remember(self, memory: dict[Stream, None], stream: Stream, limit: int) -> None:
        memory[stream] = None
        if len(memory) > limit:
            oldest = next(iter(memory))
            del memory[oldest]
            if memory is self._unknown:
                self._unknown_to_report.pop(oldest, None)
