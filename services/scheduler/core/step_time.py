"""The step-time model: microseconds as a linear function of a step's size, fitted while serving.

Exponentially forgotten least squares with a small ridge, solved when asked; coefficients below zero are left out and
the rest fitted again, for each is a cost.
"""

from typing import Final

from noria.proto.scheduling import StepTime

_FORGET: Final = 0.995
_RIDGE: Final = 1e-3
_SOLVE_EVERY: Final = 16
# A step, a hundred query tokens, ten thousand cached tokens and ten requests are of one size, so that one ridge fits.
_SCALE: Final = (1.0, 100.0, 10_000.0, 10.0)


class StepTimeModel:
    """Learns from (query tokens, cached tokens read, requests) -> microseconds."""

    def __init__(self) -> None:
        self._matrix = [[0.0] * 4 for _ in range(4)]
        self._vector = [0.0] * 4
        self._unsolved = 0
        self._steps = 0
        self._solved = StepTime()

    def observe(self, query_tokens: int, cache_tokens: int, requests: int, compute_us: int) -> None:
        """Learn from one step; steps without a time or without work say nothing."""
        if compute_us <= 0 or query_tokens <= 0:
            return
        scaled = (1.0, query_tokens / _SCALE[1], cache_tokens / _SCALE[2], requests / _SCALE[3])
        for row, first in zip(self._matrix, scaled, strict=True):
            for column, second in enumerate(scaled):
                row[column] = row[column] * _FORGET + first * second
        self._vector = [old * _FORGET + value * compute_us for old, value in zip(self._vector, scaled, strict=True)]
        self._unsolved += 1
        self._steps += 1

    def coefficients(self) -> StepTime:
        """The present fit; solved again after every few steps."""
        if self._unsolved >= min(_SOLVE_EVERY, self._steps or 1):
            self._unsolved = 0
            self._solved = self._solve()
        return self._solved

    def predict_us(self, query_tokens: int, cache_tokens: int, requests: int) -> float:
        """The predicted time of a step; 0 before anything was learned."""
        fit = self.coefficients()
        return (
            fit.base_us
            + fit.query_token_us * query_tokens
            + fit.cache_token_us * cache_tokens
            + fit.request_us * requests
        )

    def _solve(self) -> StepTime:
        kept = [0, 1, 2, 3]
        while kept:
            solution = self._solve_for(kept)
            worst = min(range(len(kept)), key=lambda each: solution[each])
            if solution[worst] >= 0:
                values = dict(zip(kept, solution, strict=True))
                base, query, cache, request = (values.get(each, 0.0) / _SCALE[each] for each in range(4))
                return StepTime(base, query, cache, request)
            del kept[worst]
        return StepTime()

    def _solve_for(self, kept: list[int]) -> list[float]:
        """Gaussian elimination; the ridge keeps every pivot above zero."""
        rows = [[self._matrix[i][j] + (_RIDGE if i == j else 0.0) for j in kept] + [self._vector[i]] for i in kept]
        size = len(kept)
        for pivot in range(size):
            head = rows[pivot]
            for below in rows[pivot + 1 :]:
                factor = below[pivot] / head[pivot]
                for column in range(pivot, size + 1):
                    below[column] -= factor * head[column]
        solution = [0.0] * size
        for row in reversed(range(size)):
            rest = sum(rows[row][column] * solution[column] for column in range(row + 1, size))
            solution[row] = (rows[row][size] - rest) / rows[row][row]
        return solution
