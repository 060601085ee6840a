"""The actor's end of a lane that computes in threads of its own: batches go in by one queue, outcomes come out by another."""

import queue
import time
from collections import deque
from collections.abc import Callable

from noria.services.executor.plan.batch import Batch
from noria.services.executor.runner.model_runner import LANE_BATCHES, Broken, Computed, Outcome


class ThreadedLane:
    """To be derived from by lanes, whose threads take from `_posted` (a batch and when it was posted; None at the end) and `_report`.

    `wake` is called for each outcome, in the thread that reports it.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._posted: queue.SimpleQueue[tuple[Batch, int] | None] = queue.SimpleQueue()
        self._outcomes: deque[Outcome] = deque()
        self._held = 0

    @property
    def held(self) -> int:
        """Batches posted whose outcome has not been collected."""
        return self._held

    def post(self, batch: Batch) -> None:
        """Queue a batch."""
        assert self._held < LANE_BATCHES
        self._held += 1
        self._posted.put((batch, time.monotonic_ns()))

    def collect(self) -> list[Outcome]:
        """Outcomes since the last call."""
        found = []
        while self._outcomes:
            outcome = self._outcomes.popleft()
            self._held -= isinstance(outcome, Computed | Broken)
            found.append(outcome)
        return found

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._wake()
