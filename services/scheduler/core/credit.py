"""What admission may count on: credit, the step-time model, and when a new request would start."""

from typing import Final

from noria.proto.scheduling import Capacity, ClassCapacity
from noria.services.scheduler.core.board import Board
from noria.services.scheduler.core.step_time import StepTimeModel

DEFAULT_CLASS: Final = "standard"
_SMOOTHING: Final = 0.1


class Credit:
    """Counts submissions and predicts starts. `submitted` counts those of admission's present life."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.submitted = 0
        self.model = StepTimeModel()
        self._between_starts_ns = 0.0
        self._last_plan_ns: int | None = None

    def planned(self, now_ns: int, started: int, *, waiting_before: int) -> None:
        """A plan was sent that started so many requests. The pace of starts is learned only while some wait."""
        last, self._last_plan_ns = self._last_plan_ns, now_ns
        if not waiting_before:
            self._last_plan_ns = None
        elif not started:
            self._last_plan_ns = now_ns if last is None else last
        elif last is not None:
            sample = (now_ns - last) / started
            old = self._between_starts_ns
            self._between_starts_ns = sample if not old else old + _SMOOTHING * (sample - old)

    def capacity(self) -> Capacity:
        """The present credit of the one class there is."""
        board = self._board
        settings, waiting, geometry, memory = board.settings, board.waiting, board.geometry, board.memory
        requests = max(0, settings.queue_requests_max - len(waiting))
        tokens = max(0, settings.queue_tokens_max - waiting.tokens)
        largest = 0
        if memory is not None:
            largest = memory.cache.largest_tokens
        return Capacity(
            submitted=self.submitted,
            classes=(ClassCapacity(DEFAULT_CLASS, requests, tokens, self._start_ms()),),
            step_time=self.model.coefficients(),
            largest_tokens=largest,
            ready=geometry is not None,
        )

    def _start_ms(self) -> float:
        """A new request starts after those that wait: as fast as lately, and no faster than steps take their prompts."""
        board = self._board
        waiting = len(board.waiting)
        if not waiting:
            return 0.0
        budget = board.settings.max_batch_tokens
        steps = board.waiting.tokens / budget
        prefill_us = steps * self.model.predict_us(budget, 0, min(waiting, board.slots.count))
        return round(max(prefill_us / 1000, waiting * self._between_starts_ns / 1e6), 1)
