"""Random rows to sample, of all kinds over logits of all shapes, and what equal answers are."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from fakes.sampling import sampler
from numpy.typing import NDArray

from noria.proto.sampling import Sampling
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata

KINDS: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7},
    {"top_k": 50},
    {"top_k": 3000, "temperature": 2.0},
    {"top_p": 0.95, "temperature": 0.8},
    {"top_p": 0.95, "temperature": 1.5},
    {"top_p": 0.3, "temperature": 5.0},
    {"top_p": 0.999, "min_p": 0.001},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 0.0, "repetition_penalty": 0.7, "frequency_penalty": -1.0},
    {"logit_bias": ((3, 5.0), (7, -100.0), (5, 2.0))},
)


class Case:
    """A random batch: rows of all kinds over logits of all shapes."""

    def __init__(self, random: np.random.Generator, vocabulary: int) -> None:
        self.sampling = [self._sampling(random) for _ in range(int(random.choice((1, 2, 3, 5, 8, 32))))]
        rows = len(self.sampling)
        self.logits = self._logits(random, (rows, vocabulary))
        counted = [each.repetition_penalty != 1 for each in self.sampling]
        self.prompts = [some_ids(random, vocabulary, 20) if each else () for each in counted]
        self.outputs = [some_ids(random, 9, 15) if each else () for each in counted]
        self.banned = [(0, int(random.integers(vocabulary)))] if random.random() < 0.2 else []
        self.first_position = int(random.integers(1 << 20))

    def sampler(self) -> SamplingMetadata:
        return sampler(
            self.sampling,
            self.logits.shape[1],
            first_position=self.first_position,
            prompts=self.prompts,
            outputs=self.outputs,
            banned=self.banned,
        )

    @staticmethod
    def _sampling(random: np.random.Generator) -> Sampling:
        logprobs = int(random.integers(0, 21)) if random.random() < 0.3 else None
        return Sampling(seed=int(random.integers(1 << 63)), logprobs=logprobs, **KINDS[random.integers(len(KINDS))])

    @staticmethod
    def _logits(random: np.random.Generator, size: tuple[int, int]) -> NDArray[np.float32]:
        logits = (random.standard_normal(size) * random.choice((0.01, 1, 3, 8))).astype(np.float32)
        if random.random() < 0.3:
            logits = np.round(logits)  # ties
        if random.random() < 0.1:
            logits[random.random(size) < 0.3] = -np.inf
        if random.random() < 0.05:
            logits[random.random(size) < 0.001] = np.nan
        if random.random() < 0.05:
            logits[random.random(size) < 0.001] = np.inf
        return logits


def some_ids(random: np.random.Generator, end: int, count: int) -> tuple[int, ...]:
    return tuple(random.integers(0, end, count).tolist())


def same(found: SamplerOutput, expected: SamplerOutput, rows: Sequence[Sampling]) -> None:
    """The same ids, and where asked for the same likeliest ones, their log-probabilities up to rounding."""
    assert found.ids.tolist() == expected.ids.tolist(), rows
    for row, sampling in enumerate(rows):
        if sampling.logprobs is None:
            continue
        theirs, ours = (each.likelihood(row, sampling.logprobs) for each in (expected, found))
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        shares = [ours.logprob, *(share for _, share in ours.top)]
        wanted = [theirs.logprob, *(share for _, share in theirs.top)]
        assert np.allclose(shares, wanted, rtol=0, atol=2e-6, equal_nan=True)
