"""When admission is told what it may count on: a change of credit at once, changed predictions every now and then.

Predictions change with every step. Told with each, they woke admission twice as often as it has other work, and every turn
of a service that runs beside computing threads makes a step longer.
"""

from typing import Final

from noria.proto.scheduling import Capacity

PREDICTIONS_NS: Final = 100_000_000


class CapacityUpdates:
    """Remembers what was told last, and when. due_ns: when predictions are to be told that have changed since."""

    def __init__(self) -> None:
        self.due_ns: int | None = None
        self._told: Capacity | None = None
        self._told_ns = 0

    def forget(self) -> None:
        """Admission knows nothing any more."""
        self._told = self.due_ns = None

    def wanted(self, capacity: Capacity, now_ns: int) -> bool:
        """Whether this is to be told now."""
        told, self.due_ns = self._told, None
        if capacity == told:
            return False
        if told is None or _credit(capacity) != _credit(told) or now_ns >= self._told_ns + PREDICTIONS_NS:
            return True
        self.due_ns = self._told_ns + PREDICTIONS_NS
        return False

    def told(self, capacity: Capacity, now_ns: int) -> None:
        """It was sent."""
        self._told, self._told_ns = capacity, now_ns


def _credit(capacity: Capacity) -> tuple[object, ...]:
    """A capacity without its predictions."""
    classes = tuple((each.traffic_class, each.requests, each.tokens) for each in capacity.classes)
    return capacity.submitted, classes, capacity.largest_tokens, capacity.ready
