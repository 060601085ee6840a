"""The native sampler chooses what the reference chooses, at every level, however many threads and whoever is in the batch."""

from typing import Final

import numpy as np
import pytest
import torch
from executor.numerics.sampling_cases import KINDS, Case, same, some_ids
from fakes.sampling import sampler

from noria.proto.sampling import Sampling
from noria.services.executor.cpu.native.library import levels, open_kernels
from noria.services.executor.cpu.native.sampling import NativeSampling
from noria.services.executor.cpu.reference_sampling import sample

LEVELS: Final = pytest.mark.parametrize("level", levels() or [pytest.param("", marks=pytest.mark.skip("no kernels"))])


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


@LEVELS
def test_a_native_row_is_sampled_the_same_alone(level: str) -> None:
    random = np.random.default_rng(4)
    vocabulary, rows = 5003, 32
    logits = (random.standard_normal((rows, vocabulary)) * 3).astype(np.float32)
    sampling = [Sampling(seed=row, logprobs=5, **KINDS[row % len(KINDS)]) for row in range(rows)]
    outputs = [some_ids(random, vocabulary, row) for row in range(rows)]
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
