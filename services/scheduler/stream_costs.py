"""What streams cost, in the order in which it became known, kept until admission has it on record.

Admission may die before it has read or written what it was told. Whoever joins is told again what is not on record yet;
each cost has a number, so that nothing is counted twice. Nobody submits while nobody writes costs down, so there are never
more than a second's streams and all that live; the bound is for an admission that is wrong.
"""

from collections import deque
from itertools import islice
from typing import Final

from noria.proto.scheduling import Expenses, Spent

KEPT_MAX: Final = 65_536
BATCH_MAX: Final = 4_096


class StreamCosts:
    """Numbered from 1. lost: how many were given up because nobody took them."""

    def __init__(self) -> None:
        self.lost = 0
        self._first = 1
        self._entries: deque[Spent] = deque()
        self._sent = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, spent: Spent) -> None:
        """Something is to be told."""
        self._entries.append(spent)
        if len(self._entries) > KEPT_MAX:
            self.lost += 1
            self._drop(1)

    def next_batch(self) -> Expenses | None:
        """What has not been told yet, in pieces; None when everything has."""
        if self._sent == len(self._entries):
            return None
        entries = tuple(islice(self._entries, self._sent, self._sent + BATCH_MAX))
        return Expenses(entries, self._first + self._sent)

    def mark_sent(self, expenses: Expenses) -> None:
        """So much was sent."""
        self._sent += len(expenses.entries)

    def send_again(self) -> None:
        """What was told may not have been read: whoever is there now knows only what is on record."""
        self._sent = 0

    def mark_recorded(self, number: int) -> None:
        """Everything up to this number is on record."""
        self._drop(min(number - self._first + 1, len(self._entries)))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._entries.popleft()
            self._first += 1
            self._sent = max(self._sent - 1, 0)
