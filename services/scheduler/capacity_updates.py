"""When admission is sent a new capacity: at once when credit changes, every 100 ms when only predictions do.

Predictions change with every step. Sent with each, they woke admission twice as often as it has other work, and every turn
of a service that runs beside computing threads makes a step longer.
"""

from typing import Final

from noria.proto.scheduling import Capacity

PREDICTIONS_NS: Final = 100_000_000


class CapacityUpdates:
    """Remembers which capacity was sent last, and when.

    due_ns: when changed predictions are to be sent; None without any.
    """

    def __init__(self) -> None:
        self.due_ns: int | None = None
        self._sent: Capacity | None = None
        self._sent_ns = 0

    def forget(self) -> None:
        """Send the next capacity at once: admission has lost the last one."""
        self._sent = self.due_ns = None

    def is_due(self, capacity: Capacity, now_ns: int) -> bool:
        """Whether this capacity is to be sent now."""
        sent, self.due_ns = self._sent, None
        if capacity == sent:
            return False
        if sent is None or _credit(capacity) != _credit(sent) or now_ns >= self._sent_ns + PREDICTIONS_NS:
            return True
        self.due_ns = self._sent_ns + PREDICTIONS_NS
        return False

    def mark_sent(self, capacity: Capacity, now_ns: int) -> None:
        """Note that this capacity was sent."""
        self._sent, self._sent_ns = capacity, now_ns


def _credit(capacity: Capacity) -> tuple[object, ...]:
    """A capacity without its predictions."""
    classes = tuple((each.traffic_class, each.requests, each.tokens) for each in capacity.classes)
    return capacity.submitted, classes, capacity.largest_tokens, capacity.ready
