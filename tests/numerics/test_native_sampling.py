"""The native sampler chooses what the reference chooses, at every level, however many threads and whoever is in the batch."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
import torch
from fakes.sampling import sampler
from numpy.typing import NDArray

from noria.proto.base import Sampling
from noria.services.executor.native.library import levels, open_kernels
from noria.services.executor.native_sampling import NativeSampling
from noria.services.executor.sampler import Drawn, Sampler
from noria.services.executor.sampling import sample

LEVELS: Final = pytest.mark.parametrize("level", levels() or [pytest.param("", marks=pytest.mark.skip("no kernels"))])
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
        self.prompts = [_ids(random, vocabulary, 20) if each else () for each in counted]
        self.outputs = [_ids(random, 9, 15) if each else () for each in counted]
        self.banned = [(0, int(random.integers(vocabulary)))] if random.random() < 0.2 else []
        self.allowed = [(rows - 1, _ids(random, vocabulary, vocabulary // 3))] if random.random() < 0.1 else []
        self.first_position = int(random.integers(1 << 20))

    def sampler(self) -> Sampler:
        return sampler(
            self.sampling,
            self.logits.shape[1],
            first_position=self.first_position,
            prompts=self.prompts,
            outputs=self.outputs,
            banned=self.banned,
            allowed=self.allowed,
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


def _ids(random: np.random.Generator, end: int, count: int) -> tuple[int, ...]:
    return tuple(random.integers(0, end, count).tolist())


@pytest.mark.skipif(not levels(), reason="the kernels are not built")
@pytest.mark.parametrize(("vocabulary", "rows"), [(300, 3000), (17, 1000), (5003, 250), (100_007, 10)])
def test_native_and_reference_choose_the_same_tokens(vocabulary: int, rows: int) -> None:
    random = np.random.default_rng(vocabulary)
    kernels = [
        NativeSampling(open_kernels(level), vocabulary, threads)
        for level, threads in [*((level, 1) for level in levels()), (levels()[-1], 3)]
    ]
    seen = 0
    while seen < rows:
        case = Case(random, vocabulary)
        seen += len(case.sampling)
        expected = sample(torch.from_numpy(case.logits.copy()), case.sampler())
        for native in kernels:
            same(native.sample(torch.from_numpy(case.logits.copy()), case.sampler()), expected, case.sampling)


def same(found: Drawn, expected: Drawn, rows: Sequence[Sampling]) -> None:
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


@LEVELS
def test_a_native_row_is_sampled_the_same_alone(level: str) -> None:
    random = np.random.default_rng(4)
    vocabulary, rows = 5003, 32
    logits = (random.standard_normal((rows, vocabulary)) * 3).astype(np.float32)
    sampling = [Sampling(seed=row, logprobs=5, **KINDS[row % len(KINDS)]) for row in range(rows)]
    outputs = [_ids(random, vocabulary, row) for row in range(rows)]
    native = NativeSampling(open_kernels(level), vocabulary, 2)
    together = native.sample(torch.from_numpy(logits.copy()), sampler(sampling, vocabulary, outputs=outputs))
    for row in range(rows):
        alone = sampler(sampling[row : row + 1], vocabulary, outputs=outputs[row : row + 1], first_position=row)
        found = native.sample(torch.from_numpy(logits[row : row + 1].copy()), alone)
        assert found.ids[0] == together.ids[row]
        assert found.likelihood(0, 5) == together.likelihood(row, 5)  # to the bit


@LEVELS
def test_native_draws_follow_the_distribution(level: str) -> None:
    draws, vocabulary = 40_000, 600
    logits = (np.random.default_rng(5).standard_normal(vocabulary) * 1.5).astype(np.float32)
    native = NativeSampling(open_kernels(level), vocabulary, 2)
    counts = np.zeros(vocabulary)
    for first in range(0, draws, 1000):
        rows = sampler([Sampling(temperature=0.9, seed=7)] * 1000, vocabulary, first_position=first)
        counts += np.bincount(
            native.sample(torch.from_numpy(np.tile(logits, (1000, 1))), rows).ids, minlength=vocabulary
        )
    shares = np.exp(logits.astype(np.float64) / 0.9)
    expected = shares / shares.sum() * draws
    large = expected >= 5
    chi_square = ((counts - expected)[large] ** 2 / expected[large]).sum()
    chi_square += (counts - expected)[~large].sum() ** 2 / expected[~large].sum()
    freedom = int(large.sum())
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)  # exceeded by one seed in 10,000
