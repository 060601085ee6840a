"""The incarnations of the server as a client sees them: which is the current one, and when it last sent a message."""

from enum import Enum, auto
from typing import Final

_INCARNATIONS_REMEMBERED: Final = 16


class SenderStatus(Enum):
    """What a message's incarnation says of the server.

    CURRENT: it is the one that goes on. RESTARTED: it is a new one, so all calls are to be asked again. STALE: the message
    was written by one that is over, and is ignored.
    """

    CURRENT = auto()
    RESTARTED = auto()
    STALE = auto()


class ServerIncarnations:
    """Tells the current incarnation of a server from earlier ones. late_s: how long messages of an earlier one may still come."""

    def __init__(self, late_s: float) -> None:
        self.heard_s = 0.0
        self.connected_s = 0.0
        self._late_s = late_s
        self._incarnations: list[int] = []

    def observe(self, incarnation: int, now_s: float) -> SenderStatus:
        """Note a message of an incarnation at a time in seconds, and return what it says of the server."""
        heard_s = self.heard_s
        if self._incarnations and incarnation == self._incarnations[-1]:
            self.heard_s = now_s
            return SenderStatus.CURRENT
        known = incarnation in self._incarnations
        if known and now_s - heard_s < self._late_s:
            return SenderStatus.STALE  # written before it died
        self.heard_s = now_s
        # When messages of two incarnations mix, the first to be seen need not be the older: the current one is the one that goes on.
        # Mostly a restart has shown as a new connection before, and everything has been asked over that.
        unasked = bool(self._incarnations) and (known or self.connected_s <= heard_s)
        others = [each for each in self._incarnations if each != incarnation]
        self._incarnations = [*others[-_INCARNATIONS_REMEMBERED:], incarnation]
        return SenderStatus.RESTARTED if unasked else SenderStatus.CURRENT
