"""What the scheduler reports to admission, at most once a turn each: freed blocks, costs, suspects, capacity."""

from collections.abc import Callable

import msgspec

from noria.proto.scheduling import Accounted, Capacity, Reclaimed, Reclaims, Spent, Suspected
from noria.services.scheduler.capacity_updates import CapacityUpdates
from noria.services.scheduler.stream_costs import StreamCosts


class AdmissionReports:
    """Gathers what admission is to be sent.

    send: sends a message to admission; False when its outbox is full. life: number of this process's life.
    """

    def __init__(self, life: int, send: Callable[[msgspec.Struct], bool]) -> None:
        self.costs = StreamCosts()
        self._life = life
        self._send = send
        self._reclaimed: list[Reclaimed] = []
        self._capacity_updates = CapacityUpdates()
        self._suspected: Suspected | None = None

    def admission_joined(self) -> None:
        """Forget what was sent before: an admission that joins knows only what is on record."""
        self._suspected = None
        self._capacity_updates.forget()
        self.costs.send_again()

    def add_reclaimed(self, entry: Reclaimed) -> None:
        """Report that a stream has given back its last block."""
        self._reclaimed.append(entry)

    def add_cost(self, entry: Spent) -> None:
        """Report what a stream cost."""
        self.costs.add(entry)

    def mark_recorded(self, body: Accounted) -> None:
        """Drop the costs that admission has on record; costs of an earlier scheduler are ignored."""
        if body.life == self._life:
            self.costs.mark_recorded(body.number)

    @property
    def due_ns(self) -> int | None:
        """When a report is due if nothing happens before (nanoseconds); None without one."""
        return self._capacity_updates.due_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether a report is due now."""
        return self._capacity_updates.due_ns is not None and self._capacity_updates.due_ns <= now_ns

    def advance(self, now_ns: int, capacity: Capacity, suspected: Suspected | None) -> None:
        """Send every report that is due. suspected: None while not all suspects are known yet."""
        if self._reclaimed:
            self._send(Reclaims(tuple(self._reclaimed)))
            self._reclaimed.clear()
        while (expenses := self.costs.next_batch()) is not None and self._send(expenses):
            self.costs.mark_sent(expenses)
        if suspected is not None and suspected != self._suspected and self._send(suspected):
            self._suspected = suspected
        if self._capacity_updates.is_due(capacity, now_ns) and self._send(capacity):
            self._capacity_updates.mark_sent(capacity, now_ns)
