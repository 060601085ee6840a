"""How long the step under way may take before it must be taken for hung: ten times its prediction, and never too short.

Pure: the shell says what time it is.
"""

from collections import deque
from typing import Final

_PREDICTIONS: Final = 10
# An actor turns at least once a second: after a longer gap the process itself stood still, and with it the step.
_GAP_NS: Final = 3_000_000_000


class Vigil:
    """Watches over a lane, whose oldest step is the one under way. least_ns: what every step is given."""

    def __init__(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self._predicted_us: deque[float] = deque()
        self._began_ns = 0
        self._seen_ns: int | None = None

    @property
    def expected_us(self) -> int:
        """How long the step under way should take; 0 where there is none, or nobody knows."""
        return round(self._predicted_us[0]) if self._predicted_us else 0

    @property
    def due_ns(self) -> int | None:
        """When the step under way must be over."""
        if not self._predicted_us:
            return None
        return self._began_ns + max(self._least_ns, int(_PREDICTIONS * 1000 * self._predicted_us[0]))

    def over(self, now_ns: int) -> bool:
        """Whether the step under way must be taken for hung; to be asked in every turn."""
        gap_ns = now_ns - self._seen_ns if self._seen_ns is not None else 0
        self._seen_ns = now_ns
        if gap_ns > _GAP_NS:
            self._began_ns += gap_ns
        return self.due_ns is not None and now_ns >= self.due_ns

    def posted(self, predicted_us: float, now_ns: int) -> None:
        """A step was given to the lane."""
        if not self._predicted_us:
            self._began_ns = now_ns
        self._predicted_us.append(predicted_us)

    def finished(self, now_ns: int) -> None:
        """The oldest step is over, whatever came of it."""
        self._predicted_us.popleft()
        self._began_ns = now_ns
