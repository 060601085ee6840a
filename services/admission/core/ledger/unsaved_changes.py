"""What is on record of the ledger, and what is not yet: the news of a turn as one page for the journal.

The journal is told like a client that is never slow: a place for each stream says how much of it is on record, so that
what could not be written is simply part of the next page, and nothing is kept twice. Now and then a page folds: what
many pages said of each stream is said again as one piece, and those pages are void, with all they said of requests that
are forgotten. Knows nothing of disks or formats.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from noria.proto.base import Logprobs, Stream
from noria.proto.scheduling import Doubt
from noria.services.admission.core.ledger.request import ChoiceState, Request
from noria.services.admission.core.tenants.class_totals import ClassTotals, UsageKey

PAGES_PER_FOLD: Final = 512
_TOKENS_PER_FOLD: Final = 262_144  # some megabytes
_LOGPROBS_WEIGHT: Final = 32
_TIDY_NS: Final = 5_000_000_000
_SIGN_NS: Final = 5_000_000_000
_RETRY_NS: Final = 250_000_000


class RecordPosition(NamedTuple):
    """How far a stream is on record."""

    attempt: int = 0
    ids: int = 0
    characters: int = 0
    ended: bool = False


NOWHERE: Final = RecordPosition()


class JournalPart(NamedTuple):
    """News of one choice of request `number`, from output position `start` and character position `characters`.

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
    """What a turn has to put on record, as one: all of it or nothing.

    forgotten: numbers of requests on record that nothing is owed of any more. fold: the parts say everything since the
    last fold, and the pages since then are void. counted: what has happened to accounts since the last page; traffic: on a
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
    traffic: tuple[tuple[UsageKey, ClassTotals], ...] = ()
    levels: tuple[tuple[str, float], ...] = ()
    doubts: Mapping[Stream, Doubt] | None = None


@dataclass(slots=True, eq=False)
class RecordedStream:
    """A stream and how far it is on record: on pages, and folded."""

    choice: ChoiceState
    written: RecordPosition = NOWHERE
    folded: RecordPosition = NOWHERE


class UnsavedChanges:
    """Gathers facts and hands out pages. `on`: whether there is a journal at all. `stuck`: the last page was not taken."""

    def __init__(self) -> None:
        self.on = False
        self.stuck = False
        self._marks: dict[Stream, RecordedStream] = {}
        self._accepted: dict[int, Request] = {}
        self._fresh: dict[Stream, RecordedStream] = {}
        self._forgotten: dict[int, None] = {}
        self._doubts: Mapping[Stream, Doubt] | None = None
        self._pages = 0
        self._tokens = 0
        self._untidy = False
        self._tidied_ns = 0
        self._next_sign_ns = 0
        self._retry_ns = 0

    def accepted(self, request: Request) -> None:
        """A request was accepted."""
        if self.on:
            self._accepted[request.number] = request
            for choice in request.choices:
                self._marks[choice.stream] = RecordedStream(choice)

    def recovered(self, request: Request) -> None:
        """A request came from the journal, where all of it is folded."""
        if self.on:
            for choice in request.choices:
                place = _place(choice)
                self._marks[choice.stream] = RecordedStream(choice, place, place)

    def touched(self, choice: ChoiceState) -> None:
        """A stream has more ids or text, or an end."""
        if self.on:
            self._fresh[choice.stream] = self._marks[choice.stream]

    def truncated(self, choice: ChoiceState) -> None:
        """A stream went back to an earlier position under a new attempt."""
        if self.on:
            mark = self._marks[choice.stream]
            mark.written, mark.folded = _clipped(mark.written, choice), _clipped(mark.folded, choice)
            self._fresh[choice.stream] = mark

    def forgotten(self, request: Request) -> None:
        """A request has left the ledger; one that was never accepted was never on record."""
        if not self.on or not request.choices:
            return
        for choice in request.choices:
            mark = self._marks.pop(choice.stream)
            self._fresh.pop(choice.stream, None)
            self._untidy = self._untidy or mark.written != mark.folded
        if self._accepted.pop(request.number, None) is None:
            self._forgotten[request.number] = None

    def suspected(self, doubts: Mapping[Stream, Doubt]) -> None:
        """The scheduler suspects these streams and no others."""
        if self.on:
            self._doubts = doubts

    def page(self, now_ns: int, *, live: bool, counted: bool = False) -> JournalPage | None:
        """What is not on record yet, or None when nothing is or it is too early to try again.

        live: requests are unfinished, so that a sign of life is due now and then, by which a later life knows how long
        nobody was there. counted: something has happened that counts, be it to nobody's request.
        """
        if not self.on or now_ns < self._retry_ns:
            return None
        news = bool(counted or self._accepted or self._fresh or self._forgotten or self._doubts is not None)
        fold = self._folding(now_ns, news=news)
        # A record that is stuck is tried again though what it held is gone meanwhile: nobody is accepted until it is not.
        if not news and not fold and not self.stuck and not (live and now_ns >= self._next_sign_ns):
            return None
        marks = self._marks if fold else self._fresh
        parts = tuple(parts_of(marks.values(), fold=fold))
        accepted, forgotten = tuple(self._accepted.values()), tuple(self._forgotten)
        return JournalPage(now_ns, accepted, parts, forgotten, fold, doubts=self._doubts)

    def written(self, page: JournalPage) -> None:
        """A page is on record. Nothing may have changed since it was handed out."""
        self.stuck = False
        self._retry_ns = 0
        self._next_sign_ns = page.at_ns + _SIGN_NS
        for mark in self._fresh.values():
            mark.written = _place(mark.choice)
        if page.fold:
            for mark in self._marks.values():
                mark.folded = mark.written
            self._pages = self._tokens = 0
            self._untidy = False
            self._tidied_ns = page.at_ns
        elif page.parts or page.counted:
            self._pages += 1
            self._tokens += sum(len(each.ids) + len(each.logprobs) * _LOGPROBS_WEIGHT for each in page.parts)
        self._accepted.clear()
        self._fresh.clear()
        self._forgotten.clear()
        self._doubts = None

    def unwritten(self, now_ns: int) -> Sequence[Request]:
        """The page was not taken: it is tried again. Returns the requests that are not on record at all."""
        self.stuck = True
        self._retry_ns = now_ns + _RETRY_NS
        return tuple(self._accepted.values())

    def wanted_ns(self, *, live: bool) -> int | None:
        """When time alone makes a page."""
        if not self.on:
            return None
        if self.stuck:
            return self._retry_ns
        wanted = (self._tidied_ns + _TIDY_NS if self._untidy else None, self._next_sign_ns if live else None)
        return min((each for each in wanted if each is not None), default=None)

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that every accepted request has its marks, none of them ahead of the ledger."""
        if not self.on:
            return
        streams = {choice.stream: choice for request in requests for choice in request.choices}
        assert self._marks.keys() == streams.keys() >= self._fresh.keys()
        for stream, choice in streams.items():
            mark = self._marks[stream]
            assert mark.choice is choice
            assert mark.folded.ids <= mark.written.ids <= len(choice.ids)
            assert mark.folded.characters <= mark.written.characters <= choice.text.length
            assert stream in self._fresh or mark.written == _place(choice)

    def _folding(self, now_ns: int, *, news: bool) -> bool:
        if self._pages >= PAGES_PER_FOLD or self._tokens >= _TOKENS_PER_FOLD:
            return True
        if self._untidy and now_ns >= self._tidied_ns + _TIDY_NS:
            return True
        return not self._marks and (news or self._pages > 0)  # nobody is there any more: nothing need stay


def parts_of(marks: Iterable[RecordedStream], *, fold: bool) -> Iterator[JournalPart]:
    """What is not on record of these streams, or not folded yet."""
    for mark in marks:
        choice, place = mark.choice, mark.folded if fold else mark.written
        if place == _place(choice):
            continue
        ended = choice.end is not None
        yield JournalPart(
            choice.stream.request,
            choice.stream.choice,
            choice.attempt,
            place.ids,
            tuple(choice.ids[place.ids :]),
            place.characters,
            choice.text.since(place.characters),
            tuple(choice.logprobs[place.ids :]),
            choice.cached_tokens,
            choice.queue_us,
            choice.first_token_ns or 0,
            choice.end or 0,
            choice.matched,
            choice.detail,
            choice.ended_ns if ended else 0,
            choice.last_token_ns,
        )


def _place(choice: ChoiceState) -> RecordPosition:
    return RecordPosition(choice.attempt, len(choice.ids), choice.text.length, choice.end is not None)


def _clipped(place: RecordPosition, choice: ChoiceState) -> RecordPosition:
    return place._replace(ids=min(place.ids, len(choice.ids)), characters=min(place.characters, choice.text.length))
