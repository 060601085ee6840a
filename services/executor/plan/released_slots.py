"""Streams whose slots were released a moment ago, with tokens that the scheduler may not have received.

A slot is free for the next plan as soon as all that its stream may generate is planned, steps before the last token is
there. Were that lost with the scheduler, the next one would compute the whole stream again for it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from noria.services.executor.plan.slot_state import SlotState

PLANS_KEPT: Final = 8
"""More than there are steps between the plan that frees a slot and the news of what was made in it."""


@dataclass(slots=True, eq=False)
class ReleasedSlot:
    """A stream whose slot was released by plan `number`. ids: tokens known then; later ones are in its state."""

    state: SlotState
    ids: list[int]
    prompt: int
    number: int


class ReleasedSlots:
    """The streams whose slots the last `PLANS_KEPT` plans released, oldest first."""

    def __init__(self) -> None:
        self._entries: deque[ReleasedSlot] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ReleasedSlot]:
        return iter(self._entries)

    def add(self, released: ReleasedSlot) -> None:
        """Keep a stream whose slot is released, and drop those that are `PLANS_KEPT` plans older."""
        self._entries.append(released)
        while self._entries[0].number <= released.number - PLANS_KEPT:
            self._entries.popleft()

    def clear(self) -> None:
        """Drop all: a scheduler that opens an epoch knows every token."""
        self._entries.clear()
