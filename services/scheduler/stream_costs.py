"""What each stream cost, kept until admission has it on record.

Admission may die before it has read or written what it was sent. Whoever joins is sent again what is not on record yet;
each cost has a number, so that nothing is counted twice. Nobody submits while nobody writes costs down, so there are never
more than a second's streams and all that live; the bound is for an admission that misbehaves.
"""

from collections import deque
from itertools import islice
from typing import Final

from noria.proto.scheduling import Expenses, Spent

KEPT_MAX: Final = 65_536
BATCH_MAX: Final = 4_096


class StreamCosts:
    """Costs in the order in which they became known, numbered from 1.

    lost: how many were dropped because more than KEPT_MAX waited.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._first = 1
        self._entries: deque[Spent] = deque()
        self._sent = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, spent: Spent) -> None:
        """Keep what a stream cost until it is on record."""
        self._entries.append(spent)
        if len(self._entries) > KEPT_MAX:
            self.lost += 1
            self._drop(1)

    def next_batch(self) -> Expenses | None:
        """Up to BATCH_MAX costs that have not been sent yet; None when all were."""
        if self._sent == len(self._entries):
            return None
        entries = tuple(islice(self._entries, self._sent, self._sent + BATCH_MAX))
        return Expenses(entries, self._first + self._sent)

    def mark_sent(self, expenses: Expenses) -> None:
        """Note that this batch was sent."""
        self._sent += len(expenses.entries)

    def send_again(self) -> None:
        """Send all that is not on record again: what was sent may not have been read."""
        self._sent = 0

    def mark_recorded(self, number: int) -> None:
        """Drop every cost up to this number: it is on record."""
        self._drop(min(number - self._first + 1, len(self._entries)))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._entries.popleft()
            self._first += 1
            self._sent = max(self._sent - 1, 0)
