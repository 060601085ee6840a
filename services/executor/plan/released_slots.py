"""Streams that left their slots a moment ago, whose last tokens the scheduler may not live to hear of.

A slot is free for the next plan as soon as all that its stream may generate is planned, steps before the last token is
there. Were that lost with the scheduler, the next one would compute the whole stream again for it.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from noria.services.executor.plan.slot_state import Occupant

PLANS_KEPT: Final = 8
"""More than there are steps between the plan that frees a slot and the news of what was made in it."""


@dataclass(slots=True, eq=False)
class Departure:
    """A stream whose slot plan `number` released. ids: those known then; its occupant has what came later."""

    occupant: Occupant
    ids: list[int]
    prompt: int
    number: int


class Departures:
    """Those of the last plans, oldest first; at most so many as slots were released by `PLANS_KEPT` plans."""

    def __init__(self) -> None:
        self._entries: deque[Departure] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Departure]:
        return iter(self._entries)

    def add(self, departure: Departure) -> None:
        """A slot was released; what was released long before is forgotten."""
        self._entries.append(departure)
        while self._entries[0].number <= departure.number - PLANS_KEPT:
            self._entries.popleft()

    def clear(self) -> None:
        """Whoever opens an epoch knows everything."""
        self._entries.clear()
