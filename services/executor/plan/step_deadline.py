"""The deadline of the step under way: ten times its predicted duration, and never less than a configured minimum.

Pure: the shell says what time it is.
"""

from collections import deque
from typing import Final

_PREDICTIONS: Final = 10
# An actor turns at least once a second: after a longer gap the process itself stood still, and with it the step.
_GAP_NS: Final = 3_000_000_000


class StepDeadline:
    """Tells when the step under way hangs. least_ns: the time that every step has."""

    def __init__(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self._predicted_us: deque[float] = deque()
        self._began_ns = 0
        self._seen_ns: int | None = None

    @property
    def expected_us(self) -> int:
        """Predicted microseconds of the step under way; 0 when there is none, or no prediction."""
        return round(self._predicted_us[0]) if self._predicted_us else 0

    @property
    def due_ns(self) -> int | None:
        """The deadline of the step under way, on the clock of `posted`; None when there is none."""
        if not self._predicted_us:
            return None
        return self._began_ns + max(self._least_ns, int(_PREDICTIONS * 1000 * self._predicted_us[0]))

    def over(self, now_ns: int) -> bool:
        """Whether the step under way is past its deadline; to be asked in every turn."""
        gap_ns = now_ns - self._seen_ns if self._seen_ns is not None else 0
        self._seen_ns = now_ns
        if gap_ns > _GAP_NS:
            self._began_ns += gap_ns
        return self.due_ns is not None and now_ns >= self.due_ns

    def posted(self, predicted_us: float, now_ns: int) -> None:
        """Note a step that was given to the model runner."""
        if not self._predicted_us:
            self._began_ns = now_ns
        self._predicted_us.append(predicted_us)

    def finished(self, now_ns: int) -> None:
        """Drop the oldest step, which succeeded or failed; the next one's time begins."""
        self._predicted_us.popleft()
        self._began_ns = now_ns
