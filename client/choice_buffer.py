"""Puts one choice together from its deltas, by the rule of `noria.proto.token_runs`, and merges what is not read yet.

Pure. Knows nothing of requests, sockets or time.
"""

from dataclasses import dataclass, field
from typing import assert_never

from noria.client.results import Choice, Delta, Finish, Logprobs
from noria.proto import frontdoor
from noria.proto.token_runs import RunStatus, StreamPosition


@dataclass(slots=True, eq=False)
class ChoiceBuffer:
    """The output of one choice: `ids` and `characters` are what has arrived, the cursors what has been read."""

    index: int
    attempt: int = 0
    ids: list[int] = field(default_factory=list)
    characters: int = 0
    finish: Finish | None = None
    logprobs: list[Logprobs] = field(default_factory=list)
    _parts: list[str] = field(default_factory=list)
    _read_ids: int = 0
    _read_parts: int = 0
    _read_characters: int = 0
    _read_finish: bool = False

    def add(self, delta: frontdoor.Delta) -> bool:
        """Add what is new in a delta; False when something before it is missing, and then nothing is added."""
        if self.finish is not None:
            return True
        position = StreamPosition(self.attempt, len(self.ids), self.characters)
        status, known_ids, known_characters = position.fit(delta.attempt, delta.start, delta.characters)
        match status:
            case RunStatus.OUTDATED:
                return True
            case RunStatus.MISSING_IDS | RunStatus.MISSING_TEXT:
                return False
            case RunStatus.RESTARTS:
                self._truncate(delta.attempt, delta.start, delta.characters)
            case RunStatus.CONTINUES:
                pass
            case _:
                assert_never(status)
        self.ids.extend(delta.ids[known_ids:])
        self.logprobs.extend(delta.logprobs[known_ids:])
        text = delta.text[known_characters:]
        if text:
            self._parts.append(text)
            self.characters += len(text)
        return True

    def contradicts(self, delta: frontdoor.Delta) -> bool:
        """Whether a delta has other ids for tokens of the same attempt that have arrived already."""
        overlap = delta.ids[: max(len(self.ids) - delta.start, 0)]
        same_attempt = self.finish is None and delta.attempt == self.attempt
        return same_attempt and tuple(self.ids[delta.start : delta.start + len(overlap)]) != overlap

    def end(self, finish: Finish) -> bool:
        """Note the end; False when tokens before it are missing, and then nothing is noted."""
        if self.finish is not None:
            return True
        if finish.output_tokens > len(self.ids):
            return False
        self.finish = finish
        return True

    def read(self) -> Delta | None:
        """Everything not read before as one delta, or None when there is nothing."""
        ending = self.finish is not None and not self._read_finish
        if self._read_ids == len(self.ids) and self._read_parts == len(self._parts) and not ending:
            return None
        news = Delta(
            index=self.index,
            text="".join(self._parts[self._read_parts :]),
            token_ids=tuple(self.ids[self._read_ids :]),
            start=self._read_ids,
            characters=self._read_characters,
            attempt=self.attempt,
            finish=self.finish if ending else None,
            logprobs=tuple(self.logprobs[self._read_ids :]),
        )
        self._read_ids, self._read_parts, self._read_characters = len(self.ids), len(self._parts), self.characters
        self._read_finish = self._read_finish or ending
        return news

    def choice(self) -> Choice:
        """The whole choice. Raises AssertionError before its end."""
        assert self.finish is not None
        return Choice(self.index, "".join(self._parts), tuple(self.ids), self.finish, tuple(self.logprobs))

    def _truncate(self, attempt: int, start: int, characters: int) -> None:
        text = "".join(self._parts)
        read = text[: min(self._read_characters, characters)]
        unread = text[len(read) : characters]
        self.attempt = attempt
        del self.ids[start:], self.logprobs[start:]
        self._parts = [part for part in (read, unread) if part]
        self.characters = characters
        self._read_ids = min(self._read_ids, start)
        self._read_parts = 1 if read else 0
        self._read_characters = len(read)
