"""One open stream: its output ids, their text, its end, and how much of them has been reported to admission.

Text is final id by id, so that how ids were bundled on the way never shows. A stop string is looked for in final text,
and in what is held back once the stream ends; it then takes precedence over the end that was proposed.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from noria.proto.base import Alternative, End, Logprobs, Stream, TokenLogprob
from noria.proto.output import Opening, TextRun
from noria.services.detokenizer.core.stop_strings import StopMatcher
from noria.services.detokenizer.core.text_decoder import make_decoder
from noria.services.detokenizer.core.vocabulary import Vocabulary

# Stands for a log-probability that was not sent: the lowest that OpenAI's API has.
_UNKNOWN: Final = TokenLogprob(-9999.0)


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended.

    matched: the stop string or stop token id, or empty. detail: what went wrong, or empty.
    """

    end: End
    matched: str = ""
    detail: str = ""


class StreamText:
    """The text of one stream, from the message `Open` to `Ended`.

    ids: output ids, cut after the one that completed a stop string. ending: None while the stream goes on.
    reported_ids, reported_characters, ending_reported: how much admission has received.
    released: characters of text that no later id can change and no stop string can take back.
    likelihoods: log-probabilities by output position, for ids that came with one.
    """

    __slots__ = (
        "_decoder",
        "_matcher",
        "_released_at",
        "_settled",
        "_settled_characters",
        "_text_starts",
        "_unsettled",
        "_vocabulary",
        "attempt",
        "cached_tokens",
        "ending",
        "ending_reported",
        "ids",
        "likelihoods",
        "opening",
        "queue_us",
        "released",
        "reported_characters",
        "reported_ids",
    )

    def __init__(self, opening: Opening, vocabulary: Vocabulary) -> None:
        self.opening = opening
        self.attempt = opening.attempt
        self.cached_tokens = 0
        self.queue_us = 0
        self._vocabulary = vocabulary
        self.likelihoods: dict[int, TokenLogprob] = {}
        self._begin(opening.output_ids)
        self.reported_ids = len(opening.output_ids)
        self.reported_characters = opening.characters
        self.ending_reported = False

    @property
    def stream(self) -> Stream:
        """The stream's number and choice."""
        return self.opening.stream

    @property
    def has_unreported(self) -> bool:
        """Whether ids, text or the end have not been reported yet."""
        return (
            len(self.ids) > self.reported_ids
            or self.released > self.reported_characters
            or (self.ending is not None and not self.ending_reported)
        )

    def extend(
        self, ids: Sequence[int], end: End | None = None, detail: str = "", likelihoods: Sequence[TokenLogprob] = ()
    ) -> None:
        """Append ids, and the end that the scheduler proposes after them. Raises AssertionError when the stream has ended."""
        assert self.ending is None
        self.likelihoods.update(enumerate(likelihoods, len(self.ids)))
        stop_token = ids[-1] if ids and end is End.STOP else None
        for token in ids[:-1] if stop_token is not None else ids:
            if not self._push(token):
                return
        if stop_token is not None:
            self._push_stop_token(stop_token)
        elif end is not None:
            self._flush(StreamEnd(end, self._last_stop_token(end), detail))

    def truncate(self, attempt: int, start: int) -> None:
        """Begin a newer attempt that keeps the first `start` ids. Raises AssertionError if ended or shorter than that."""
        assert self.ending is None and start <= len(self.ids) and attempt > self.attempt
        self.attempt = attempt
        if start < len(self.ids):
            self._begin(self.ids[:start])
        self.reported_ids = start
        self.reported_characters = self._released_before(start)

    def rewind(self, start: int) -> None:
        """Report again from output position `start`."""
        self.reported_ids = min(start, self.reported_ids)
        self.reported_characters = min(self._released_before(self.reported_ids), self.reported_characters)
        self.ending_reported = False

    def resume_from(self, ids: int, characters: int) -> None:
        """Report from here on what lies beyond the `ids` and `characters` that admission has."""
        self.reported_ids = ids
        self.reported_characters = characters
        self.ending_reported = False

    def restore_report(self, run: TextRun) -> None:
        """Take back a report that could not be sent, so that the next one contains it."""
        self.reported_ids = min(self.reported_ids, run.start)
        self.reported_characters = min(self.reported_characters, run.characters)
        self.ending_reported = False

    def report(self) -> TextRun:
        """Return what admission has not received yet, and count it as reported."""
        ended = self.ending
        run = TextRun(
            self.stream,
            self.attempt,
            min(self.reported_ids, len(self.ids)),
            tuple(self.ids[self.reported_ids :]),
            self.reported_characters,
            self._text(self.reported_characters, self.released),
            0 if ended is None else ended.end,
            "" if ended is None else ended.matched,
            "" if ended is None else ended.detail,
            self.cached_tokens,
            self.queue_us,
            self._logprobs(self.reported_ids) if self.opening.logprobs else (),
        )
        self.reported_ids = len(self.ids)
        self.reported_characters = max(self.reported_characters, self.released)
        self.ending_reported = ended is not None
        self._compact()
        return run

    def check(self) -> None:
        """Check the invariants that hold between any two events. Raises AssertionError."""
        assert len(self._released_at) == len(self._text_starts) == len(self.ids)
        assert all(before <= after for before, after in zip(self._released_at, self._released_at[1:], strict=False))
        length = self._settled_characters + len(self._unsettled)
        assert self.released <= length
        assert not self._released_at or self._released_at[-1] <= self.released
        assert self.ending is None or self.released == length
        assert sum(map(len, self._settled)) == self._settled_characters

    def _begin(self, ids: Sequence[int]) -> None:
        opening = self.opening
        self.ids: array[int] = array("q")
        self._released_at: array[int] = array("q")
        self._text_starts: array[int] = array("q")
        self._decoder = make_decoder(self._vocabulary, opening.prompt_tail, opening.skip_special_tokens)
        stops = tuple(stop for stop in opening.stop if stop)
        self._matcher = StopMatcher(stops) if stops else None
        self._settled: list[str] = []
        self._settled_characters = 0
        self._unsettled = ""
        self.released = 0
        self.ending: StreamEnd | None = None
        for token in ids:
            if not self._push(token):
                return

    def _push(self, token: int) -> bool:
        """Take one id; False when a stop string ends the stream with it."""
        self._append(token)
        if text := self._decoder.push(token):
            self._add(text)
        self._released_at.append(self.released)
        return self.ending is None

    def _push_stop_token(self, token: int) -> None:
        self._append(token)
        text = self._decoder.push(token) if self.opening.include_stop else ""
        self._add(text + self._decoder.flush())
        self._close(StreamEnd(End.STOP, str(token)))
        self._released_at.append(self.released)

    def _append(self, token: int) -> None:
        self._text_starts.append(self._settled_characters + len(self._unsettled))
        self.ids.append(token)

    def _logprobs(self, start: int) -> tuple[Logprobs, ...]:
        """The log-probabilities of the ids from position `start` on."""
        return tuple(self._logprobs_at(position, token) for position, token in enumerate(self.ids[start:], start))

    def _logprobs_at(self, position: int, token: int) -> Logprobs:
        bytes_of = self._vocabulary.bytes_of
        likelihood = self.likelihoods.get(position, _UNKNOWN)
        top = tuple(Alternative(each, bytes_of(each), logprob) for each, logprob in likelihood.top)
        return Logprobs(likelihood.logprob, bytes_of(token), self._text_starts[position], top)

    def _flush(self, proposed: StreamEnd) -> None:
        self._add(self._decoder.flush())
        self._close(proposed)

    def _close(self, proposed: StreamEnd) -> None:
        """Accept the proposed end unless a stop string came first, and release all text."""
        if self.ending is None:
            self.ending = proposed
            self.released = self._settled_characters + len(self._unsettled)

    def _add(self, text: str) -> None:
        """Append final text; a stop string that completes in it ends the stream there."""
        self._unsettled += text
        if self._matcher is None:
            self.released = self._settled_characters + len(self._unsettled)
            return
        match = self._matcher.feed(text, armed=len(self.ids) >= self.opening.min_tokens)
        if match is None:
            self.released = self._settled_characters + len(self._unsettled) - self._matcher.held
            return
        cut = match.end if self.opening.include_stop else match.start
        self._unsettled = self._unsettled[: cut - self._settled_characters]
        self.released = cut
        self.ending = StreamEnd(End.STOP, match.stop)

    def _compact(self) -> None:
        """Move released text to a list of parts, so that appending stays cheap however long the stream."""
        count = self.released - self._settled_characters
        if count > 0:
            self._settled.append(self._unsettled[:count])
            self._settled_characters += count
            self._unsettled = self._unsettled[count:]

    def _text(self, start: int, end: int) -> str:
        if start >= self._settled_characters:
            return self._unsettled[start - self._settled_characters : max(end - self._settled_characters, 0)]
        return ("".join(self._settled) + self._unsettled)[start:end]

    def _released_before(self, position: int) -> int:
        """Characters released when the first `position` ids were known."""
        return self._released_at[min(position, len(self._released_at)) - 1] if position and self._released_at else 0

    def _last_stop_token(self, end: End) -> str:
        last = self.ids[-1] if self.ids else None
        return str(last) if end is End.STOP and last in self.opening.end_ids else ""
