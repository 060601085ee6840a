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
        self._publishing = CapacityUpdates()
        self._suspected: Suspected | None = None

    def joined(self) -> None:
        """Admission knows only what is on record."""
        self._suspected = None
        self._publishing.forget()
        self.costs.tell_again()

    def reclaimed(self, entry: Reclaimed) -> None:
        """A stream's last block is back."""
        self._reclaimed.append(entry)

    def spent(self, entry: Spent) -> None:
        """What a stream cost is known."""
        self.costs.add(entry)

    def accounted(self, body: Accounted) -> None:
        """Costs are on record; those of an earlier scheduler are nothing to this one."""
        if body.life == self._life:
            self.costs.accounted(body.number)

    @property
    def due_ns(self) -> int | None:
        """When there will be something to tell, if nothing happens before."""
        return self._publishing.due_ns

    def due(self, now_ns: int) -> bool:
        """Whether that is now."""
        return self._publishing.due_ns is not None and self._publishing.due_ns <= now_ns

    def advance(self, now_ns: int, capacity: Capacity, suspected: Suspected | None) -> None:
        """Send what there is to tell. suspected: None while that is not known yet."""
        if self._reclaimed:
            self._send(Reclaims(tuple(self._reclaimed)))
            self._reclaimed.clear()
        while (expenses := self.costs.due()) is not None and self._send(expenses):
            self.costs.told(expenses)
        if suspected is not None and suspected != self._suspected and self._send(suspected):
            self._suspected = suspected
        if self._publishing.wanted(capacity, now_ns) and self._send(capacity):
            self._publishing.told(capacity, now_ns)
