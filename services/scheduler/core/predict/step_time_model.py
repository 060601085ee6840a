"""The step-time model: microseconds as a linear function of a step's size, fitted while serving.

Weighted least squares on relative errors: a step counts by how far it was off, not by how long it took, and one far off
(a page fault, a noisy neighbour) counts for little (Huber's weights, with a scale that follows the median error).
Steps of one size are forgotten as others of that size come, so that hours of decodes don't wash out what a prefill
costs. Coefficients below zero are left out and the rest fitted again, for each is a cost. Deterministic; O(1) a step.
"""

import math
from typing import Final

from noria.proto.scheduling import StepTime

_FORGET: Final = 0.99
_RIDGE: Final = 1e-5
_SOLVE_EVERY: Final = 16
# A step, a hundred query tokens, ten thousand cached tokens, ten requests and a million pairs of a token and a cached one
# are of one size, so that one ridge fits.
_SCALE: Final = (1.0, 100.0, 10_000.0, 10.0, 1_000_000.0)
_FEATURES: Final = len(_SCALE)
_SIZES: Final = 10
# Huber's constant for normal errors, times the ratio of their deviation to their median.
_HUBER: Final = 1.345 * 1.4826
_ERROR_FIRST: Final = 0.2
_ERROR_LEAST: Final = 0.005
_ERROR_PACE: Final = 0.05
_TRUSTED_AFTER: Final = 4

_Row = tuple[float, float, float, float, float]


def predict_us(fit: StepTime, query_tokens: float, cache_tokens: float, requests: float, pairs: float = 0.0) -> float:
    """Microseconds that a step of this size takes by a fit."""
    linear = fit.base_us + fit.query_token_us * query_tokens + fit.cache_token_us * cache_tokens
    return linear + fit.request_us * requests + fit.pair_us * pairs


class StepTimeModel:
    """Learns from (query tokens, cached tokens read, requests, pairs) -> microseconds. steps: how many it has learned from.

    pairs: over the chunks of prompts, each token times the cached tokens that it looks at. Single tokens that continue a
    sequence make none: what they read is in the cached tokens already.
    """

    def __init__(self) -> None:
        self._memories: list[_NormalEquations | None] = [None] * _SIZES
        self._unsolved = 0
        self._error = _ERROR_FIRST
        self._solved = StepTime()
        self.steps = 0

    def observe(self, query_tokens: int, cache_tokens: int, requests: int, compute_us: int, pairs: int = 0) -> None:
        """Learn from one step; steps without a time or without work say nothing."""
        if compute_us <= 0 or query_tokens <= 0:
            return
        predicted = self.predict_us(query_tokens, cache_tokens, requests, pairs)
        weight = 1.0
        if predicted <= 0 or self.steps < _TRUSTED_AFTER:
            predicted = float(compute_us)
        else:
            error = abs(compute_us / predicted - 1.0)
            weight = min(1.0, _HUBER * self._error / error) if error else 1.0
            pace = _ERROR_PACE if error > self._error else -_ERROR_PACE
            self._error = max(_ERROR_LEAST, self._error * math.exp(pace))
        size = min(query_tokens.bit_length() // 2, _SIZES - 1)
        memory = self._memories[size]
        if memory is None:
            memory = self._memories[size] = _NormalEquations()
        sizes = (query_tokens / _SCALE[1], cache_tokens / _SCALE[2], requests / _SCALE[3], pairs / _SCALE[4])
        memory.learn((1.0, *sizes), float(compute_us), weight / (predicted * predicted))
        self._unsolved += 1
        self.steps += 1

    def coefficients(self) -> StepTime:
        """The present fit; solved again after every few steps, at first after each."""
        if self._unsolved >= min(_SOLVE_EVERY, self.steps // 4 + 1):
            self._unsolved = 0
            self._solved = self._solve()
        return self._solved

    def predict_us(self, query_tokens: float, cache_tokens: float, requests: float, pairs: float = 0.0) -> float:
        """The predicted time of a step; 0 before anything was learned."""
        return predict_us(self.coefficients(), query_tokens, cache_tokens, requests, pairs)

    def _solve(self) -> StepTime:
        memories = [memory for memory in self._memories if memory is not None]
        matrix = [
            [sum(each.matrix[row][column] for each in memories) for column in range(_FEATURES)]
            for row in range(_FEATURES)
        ]
        vector = [sum(each.vector[row] for each in memories) for row in range(_FEATURES)]
        kept = [each for each in range(_FEATURES) if matrix[each][each] > 0]
        while kept:
            solution = _solve(matrix, vector, kept)
            worst = min(range(len(kept)), key=lambda each: solution[each])
            if solution[worst] >= 0:
                values = dict(zip(kept, solution, strict=True))
                return StepTime(*(values.get(each, 0.0) / scale for each, scale in enumerate(_SCALE)))
            del kept[worst]
        return StepTime()


class _NormalEquations:
    """The normal equations of steps of one size, the older the fainter."""

    __slots__ = ("matrix", "vector")

    def __init__(self) -> None:
        self.matrix = [[0.0] * _FEATURES for _ in range(_FEATURES)]
        self.vector = [0.0] * _FEATURES

    def learn(self, row: _Row, compute_us: float, weight: float) -> None:
        vector = self.vector
        for each, (first, line) in enumerate(zip(row, self.matrix, strict=True)):
            weighted = first * weight
            vector[each] = vector[each] * _FORGET + weighted * compute_us
            for column in range(_FEATURES):
                line[column] = line[column] * _FORGET + weighted * row[column]


def _solve(matrix: list[list[float]], vector: list[float], kept: list[int]) -> list[float]:
    """Gaussian elimination; the ridge, relative to each feature, keeps every pivot above zero."""
    rows = [[matrix[i][j] * (1.0 + _RIDGE if i == j else 1.0) for j in kept] + [vector[i]] for i in kept]
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
