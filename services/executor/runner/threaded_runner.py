"""The part of a model runner that every kind has: batches go to its threads by one queue, events come back by another."""

import queue
import time
from collections import deque
from collections.abc import Callable

from noria.services.executor.plan.batch import Batch
from noria.services.executor.runner.model_runner import BATCHES_IN_FLIGHT_MAX, RunnerEvent, StepBroken, StepComputed


class ThreadedModelRunner:
    """Base class of model runners that compute in threads of their own.

    Its threads take batches from `_posted`, each with the time when it was posted (ns), or None at the end, and hand events
    to `_report`, which calls `wake` in the thread that reports.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._posted: queue.SimpleQueue[tuple[Batch, int] | None] = queue.SimpleQueue()
        self._outcomes: deque[RunnerEvent] = deque()
        self._held = 0

    @property
    def held(self) -> int:
        """Batches posted whose outcome has not been collected."""
        return self._held

    def post(self, batch: Batch) -> None:
        """Queue a batch; at most BATCHES_IN_FLIGHT_MAX may be held."""
        assert self._held < BATCHES_IN_FLIGHT_MAX
        self._held += 1
        self._posted.put((batch, time.monotonic_ns()))

    def collect(self) -> list[RunnerEvent]:
        """Events since the last call, in order."""
        found = []
        while self._outcomes:
            outcome = self._outcomes.popleft()
            self._held -= isinstance(outcome, StepComputed | StepBroken)
            found.append(outcome)
        return found

    def _report(self, outcome: RunnerEvent) -> None:
        self._outcomes.append(outcome)
        self._wake()
