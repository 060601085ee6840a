"""What admission is told, at most once a turn each: blocks that are back, costs, suspects, what it may count on."""

from collections.abc import Callable

import msgspec

from noria.proto.scheduling import Accounted, Capacity, Reclaimed, Reclaims, Spent, Suspected
from noria.services.scheduler.capacity_updates import CapacityUpdates
from noria.services.scheduler.stream_costs import StreamCosts


class AdmissionReports:
    """Gathers what admission is to be told. send: a message to admission; False when it was not taken. life: this process's."""

    def __init__(self, life: int, send: Callable[[msgspec.Struct], bool]) -> None:
        self.costs = StreamCosts()
        self._life = life
        self._send = send
        self._reclaimed: list[Reclaimed] = []
        self._capacity_updates = CapacityUpdates()
        self._suspected: Suspected | None = None

    def admission_joined(self) -> None:
        """Admission knows only what is on record."""
        self._suspected = None
        self._capacity_updates.forget()
        self.costs.send_again()

    def add_reclaimed(self, entry: Reclaimed) -> None:
        """A stream's last block is back."""
        self._reclaimed.append(entry)

    def add_cost(self, entry: Spent) -> None:
        """What a stream cost is known."""
        self.costs.add(entry)

    def mark_recorded(self, body: Accounted) -> None:
        """Costs are on record; those of an earlier scheduler are nothing to this one."""
        if body.life == self._life:
            self.costs.mark_recorded(body.number)

    @property
    def due_ns(self) -> int | None:
        """When there will be something to tell, if nothing happens before."""
        return self._capacity_updates.due_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether that is now."""
        return self._capacity_updates.due_ns is not None and self._capacity_updates.due_ns <= now_ns

    def advance(self, now_ns: int, capacity: Capacity, suspected: Suspected | None) -> None:
        """Send what there is to tell. suspected: None while that is not known yet."""
        if self._reclaimed:
            self._send(Reclaims(tuple(self._reclaimed)))
            self._reclaimed.clear()
        while (expenses := self.costs.next_batch()) is not None and self._send(expenses):
            self.costs.mark_sent(expenses)
        if suspected is not None and suspected != self._suspected and self._send(suspected):
            self._suspected = suspected
        if self._capacity_updates.is_due(capacity, now_ns) and self._send(capacity):
            self._capacity_updates.mark_sent(capacity, now_ns)
