"""Tracks which changes of the ledger the journal does not have yet, and makes pages of them.

A position for each stream says how many of its tokens are in the journal, so that
what could not be written is simply part of the next page, and nothing is kept twice. Now and then a page folds: what
many pages said of each stream is said again as one piece, and those pages are void, with all they said of requests that
are forgotten. Knows nothing of disks or formats.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from noria.proto.base import Logprobs, Stream
from noria.proto.scheduling import Doubt
from noria.services.admission.core.ledger.request import ChoiceRecord, Request
from noria.services.admission.core.tenants.class_totals import ClassTotals, UsageKey

PAGES_PER_FOLD: Final = 512
_TOKENS_PER_FOLD: Final = 262_144  # some megabytes
_LOGPROBS_WEIGHT: Final = 32
_FOLD_NS: Final = 5_000_000_000
_ALIVE_NS: Final = 5_000_000_000
_RETRY_NS: Final = 250_000_000


class RecordPosition(NamedTuple):
    """How many ids and characters of a stream are in the journal, of which attempt, and whether its end is."""

    attempt: int = 0
    ids: int = 0
    characters: int = 0
    ended: bool = False


NOT_RECORDED: Final = RecordPosition()


class JournalPart(NamedTuple):
    """New output of one choice of request `number`, from output position `start` and character position `characters`.

    A higher attempt truncates what is on record to `start` and `characters`. Times are admission's monotonic
    nanoseconds, 0 for what has not been. end: 0 while it goes on.
    """

    number: int
    choice: int
    attempt: int
    start: int
    ids: tuple[int, ...]
    characters: int
    text: str
    logprobs: tuple[Logprobs, ...] = ()
    cached_tokens: int = 0
    queue_us: int = 0
    first_token_ns: int = 0
    end: int = 0
    matched: str = ""
    detail: str = ""
    ended_ns: int = 0
    last_token_ns: int = 0


@dataclass(frozen=True, slots=True)
class JournalPage:
    """All changes of a turn for the journal, written in one transaction.

    forgotten: numbers of requests on record that nothing is owed of any more. fold: the parts say everything since the
    last fold, and the pages since then are void. counted: what has happened by tenant and class since the last page; class_totals: on a
    fold, all that ever happened to those that have changed since the last one. levels: what is left in tenants' buckets,
    where it has changed. doubts: whom the scheduler suspects, where that has changed. Without any of it a page is a sign of
    life.
    """

    at_ns: int
    accepted: tuple[Request, ...]
    parts: tuple[JournalPart, ...]
    forgotten: tuple[int, ...]
    fold: bool
    counted: tuple[tuple[UsageKey, ClassTotals], ...] = ()
    class_totals: tuple[tuple[UsageKey, ClassTotals], ...] = ()
    levels: tuple[tuple[str, float], ...] = ()
    doubts: Mapping[Stream, Doubt] | None = None


@dataclass(slots=True, eq=False)
class RecordedStream:
    """A stream with how much of it is in the journal: written to pages, and of that folded into one piece."""

    choice: ChoiceRecord
    written: RecordPosition = NOT_RECORDED
    folded: RecordPosition = NOT_RECORDED


class UnsavedChanges:
    """Collects changes of the ledger and makes journal pages. on: whether a journal is written. stuck: writing the last page failed."""

    def __init__(self) -> None:
        self.on = False
        self.stuck = False
        self._streams: dict[Stream, RecordedStream] = {}
        self._accepted: dict[int, Request] = {}
        self._changed: dict[Stream, RecordedStream] = {}
        self._forgotten: dict[int, None] = {}
        self._doubts: Mapping[Stream, Doubt] | None = None
        self._pages = 0
        self._tokens = 0
        self._unfolded = False
        self._folded_ns = 0
        self._next_alive_ns = 0
        self._retry_ns = 0

    def accepted(self, request: Request) -> None:
        """Note that a request was accepted."""
        if self.on:
            self._accepted[request.number] = request
            for choice in request.choices:
                self._streams[choice.stream] = RecordedStream(choice)

    def recovered(self, request: Request) -> None:
        """Note a request that came from the journal, where all of it is folded already."""
        if self.on:
            for choice in request.choices:
                position = _position(choice)
                self._streams[choice.stream] = RecordedStream(choice, position, position)

    def stream_changed(self, choice: ChoiceRecord) -> None:
        """Note that a stream has more ids or text, or an end."""
        if self.on:
            self._changed[choice.stream] = self._streams[choice.stream]

    def truncated(self, choice: ChoiceRecord) -> None:
        """Note that a stream went back to an earlier position under a new attempt."""
        if self.on:
            stream_record = self._streams[choice.stream]
            stream_record.written, stream_record.folded = (
                _clipped(stream_record.written, choice),
                _clipped(stream_record.folded, choice),
            )
            self._changed[choice.stream] = stream_record

    def forgotten(self, request: Request) -> None:
        """Note that a request has left the ledger, so that its rows are deleted; one that was never accepted has none."""
        if not self.on or not request.choices:
            return
        for choice in request.choices:
            stream_record = self._streams.pop(choice.stream)
            self._changed.pop(choice.stream, None)
            self._unfolded = self._unfolded or stream_record.written != stream_record.folded
        if self._accepted.pop(request.number, None) is None:
            self._forgotten[request.number] = None

    def suspected(self, doubts: Mapping[Stream, Doubt]) -> None:
        """Note the streams that the scheduler suspects; they replace all earlier ones."""
        if self.on:
            self._doubts = doubts

    def next_page(self, now_ns: int, *, live: bool, counted: bool = False) -> JournalPage | None:
        """Everything that the journal lacks, as one page; None if it lacks nothing or it is too early to try again.

        live: requests are unfinished, so that a sign of life is due now and then, by which a later life knows how long
        nobody was there. counted: something has happened that counts, be it to nobody's request.
        """
        if not self.on or now_ns < self._retry_ns:
            return None
        unsaved = bool(counted or self._accepted or self._changed or self._forgotten or self._doubts is not None)
        fold = self._fold_due(now_ns, unsaved=unsaved)
        # A record that is stuck is tried again though what it held is gone meanwhile: nobody is accepted until it is not.
        if not unsaved and not fold and not self.stuck and not (live and now_ns >= self._next_alive_ns):
            return None
        streams = self._streams if fold else self._changed
        parts = tuple(parts_of(streams.values(), fold=fold))
        accepted, forgotten = tuple(self._accepted.values()), tuple(self._forgotten)
        return JournalPage(now_ns, accepted, parts, forgotten, fold, doubts=self._doubts)

    def page_written(self, page: JournalPage) -> None:
        """Note that a page is in the journal. Nothing may have changed since `next_page` returned it."""
        self.stuck = False
        self._retry_ns = 0
        self._next_alive_ns = page.at_ns + _ALIVE_NS
        for stream_record in self._changed.values():
            stream_record.written = _position(stream_record.choice)
        if page.fold:
            for stream_record in self._streams.values():
                stream_record.folded = stream_record.written
            self._pages = self._tokens = 0
            self._unfolded = False
            self._folded_ns = page.at_ns
        elif page.parts or page.counted:
            self._pages += 1
            self._tokens += sum(len(each.ids) + len(each.logprobs) * _LOGPROBS_WEIGHT for each in page.parts)
        self._accepted.clear()
        self._changed.clear()
        self._forgotten.clear()
        self._doubts = None

    def page_failed(self, now_ns: int) -> Sequence[Request]:
        """Note that a page could not be written; it is tried again 250 ms later. Returns the accepted requests that the journal lacks."""
        self.stuck = True
        self._retry_ns = now_ns + _RETRY_NS
        return tuple(self._accepted.values())

    def next_wakeup_ns(self, *, live: bool) -> int | None:
        """Monotonic nanoseconds at which a page is due by time alone; None if none is."""
        if not self.on:
            return None
        if self.stuck:
            return self._retry_ns
        wanted = (self._folded_ns + _FOLD_NS if self._unfolded else None, self._next_alive_ns if live else None)
        return min((each for each in wanted if each is not None), default=None)

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that every accepted request has its streams, none of them ahead of the ledger."""
        if not self.on:
            return
        streams = {choice.stream: choice for request in requests for choice in request.choices}
        assert self._streams.keys() == streams.keys() >= self._changed.keys()
        for stream, choice in streams.items():
            stream_record = self._streams[stream]
            assert stream_record.choice is choice
            assert stream_record.folded.ids <= stream_record.written.ids <= len(choice.ids)
            assert stream_record.folded.characters <= stream_record.written.characters <= choice.text.length
            assert stream in self._changed or stream_record.written == _position(choice)

    def _fold_due(self, now_ns: int, *, unsaved: bool) -> bool:
        if self._pages >= PAGES_PER_FOLD or self._tokens >= _TOKENS_PER_FOLD:
            return True
        if self._unfolded and now_ns >= self._folded_ns + _FOLD_NS:
            return True
        return not self._streams and (unsaved or self._pages > 0)  # nobody is there any more: nothing need stay


def parts_of(streams: Iterable[RecordedStream], *, fold: bool) -> Iterator[JournalPart]:
    """Yield what the journal lacks of these streams; fold: all that is not folded yet."""
    for stream_record in streams:
        choice, position = stream_record.choice, stream_record.folded if fold else stream_record.written
        if position == _position(choice):
            continue
        ended = choice.end is not None
        yield JournalPart(
            choice.stream.request,
            choice.stream.choice,
            choice.attempt,
            position.ids,
            tuple(choice.ids[position.ids :]),
            position.characters,
            choice.text.since(position.characters),
            tuple(choice.logprobs[position.ids :]),
            choice.cached_tokens,
            choice.queue_us,
            choice.first_token_ns or 0,
            choice.end or 0,
            choice.matched,
            choice.detail,
            choice.ended_ns if ended else 0,
            choice.last_token_ns,
        )


def _position(choice: ChoiceRecord) -> RecordPosition:
    return RecordPosition(choice.attempt, len(choice.ids), choice.text.length, choice.end is not None)


def _clipped(position: RecordPosition, choice: ChoiceRecord) -> RecordPosition:
    return position._replace(
        ids=min(position.ids, len(choice.ids)), characters=min(position.characters, choice.text.length)
    )
