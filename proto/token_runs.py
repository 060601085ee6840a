"""The rule by which a receiver of a stream's output takes a run of tokens: drop what it has, notice a gap, start over.

Every message that carries output (`TokenRun`, `TextRun`, `Delta`) says which attempt it belongs to and where it starts,
so that runs may be repeated, overlap or be lost on the way. Detokenizer, admission and client all take them by this rule.

| attempt of the run | starts | the receiver |
| --- | --- | --- |
| older than its own | anywhere | ignores the run |
| its own or newer | behind what it has | asks for what is missing and takes nothing |
| its own | within or at the end of what it has | drops the known beginning and appends the rest |
| newer | within or at the end of what it has | cuts what it has back to the start and appends the whole run |
"""

from enum import Enum, auto
from typing import NamedTuple


class RunStatus(Enum):
    """What a receiver does with a run of tokens.

    OUTDATED: ignore it, it belongs to an earlier attempt. MISSING_IDS, MISSING_TEXT: take nothing and ask for the token
    ids, or the text, before it. CONTINUES: append what is new in it. RESTARTS: cut what is there back to where the run
    starts, then append the whole run.
    """

    OUTDATED = auto()
    MISSING_IDS = auto()
    MISSING_TEXT = auto()
    CONTINUES = auto()
    RESTARTS = auto()


class RunFit(NamedTuple):
    """How a run of tokens fits to what its receiver has.

    known_ids, known_characters: how many of its first token ids and characters the receiver has already; 0 unless it
    CONTINUES. Either may be more than the run holds, when nothing in it is new.
    """

    status: RunStatus
    known_ids: int = 0
    known_characters: int = 0


class StreamPosition(NamedTuple):
    """How much of one stream its receiver has: `ids` output tokens and `characters` of text, of attempt `attempt`.

    characters stays 0 where runs carry no text.
    """

    attempt: int
    ids: int
    characters: int = 0

    def fit(self, attempt: int, start: int, characters: int = 0) -> RunFit:
        """What to do with a run of `attempt` that starts at output token `start` and character `characters`."""
        if attempt < self.attempt:
            return RunFit(RunStatus.OUTDATED)
        if start > self.ids:
            return RunFit(RunStatus.MISSING_IDS)
        if characters > self.characters:
            return RunFit(RunStatus.MISSING_TEXT)
        if attempt > self.attempt:
            return RunFit(RunStatus.RESTARTS)
        return RunFit(RunStatus.CONTINUES, self.ids - start, self.characters - characters)
