"""A device's sampler, by Triton's interpreter, chooses what the reference chooses."""

import msgspec
import numpy as np
import pytest
import torch
from executor.numerics.sampling_cases import KINDS, Case, same, some_ids
from fakes.sampling import sampler

from noria.proto.execution import Group
from noria.proto.sampling import Sampling
from noria.services.executor.cpu.reference_sampling import sample
from noria.services.executor.cuda.device.recent_tokens import DeviceRecentTokens
from noria.services.executor.plan.batch import Batch, PageTables, Slices
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata

pytest.importorskip("triton")

NONE = np.zeros(0, np.int64)


def only_sampled(rows: SamplingMetadata) -> Batch:
    """A batch of sampled rows and nothing else."""
    pages = PageTables(0, 0, np.zeros((0, 0), np.int32), NONE)
    return Batch(1, 1, NONE, NONE, NONE, NONE, Slices(NONE, NONE, NONE), (pages,), rows, (), (), (), ())


class Device:
    """A sampler for rows of a vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        from noria.services.executor.cuda.triton.sampler import TritonSampler

        self.slots = DeviceRecentTokens(40, torch.device("cpu"))
        self.sampler = TritonSampler(vocabulary, self.slots)
        self.shape = ExecutorLimits(40, 0, 0, 16, 2, vocabulary, (Group(0, 1),))

    def sample(self, logits: np.ndarray, rows: SamplingMetadata, padding: int = 0) -> SamplerOutput:
        from executor.numerics.on_device import on_device, sampled

        step = on_device(self.shape, only_sampled(rows), 1, padding)
        given = torch.zeros(step.sizes.samples, logits.shape[1])
        given[: len(logits)] = torch.from_numpy(logits)
        return sampled(self.sampler, given, step, rows)


@pytest.mark.parametrize(("vocabulary", "rows"), [(300, 50), (17, 25), (5003, 8)])
def test_device_and_reference_choose_the_same_tokens(vocabulary: int, rows: int, pytestconfig: pytest.Config) -> None:
    random = np.random.default_rng(vocabulary)
    device = Device(vocabulary)
    seen = 0
    while seen < rows * pytestconfig.getoption("rounds"):
        case = Case(random, vocabulary)
        seen += len(case.sampling)
        expected = sample(torch.from_numpy(case.logits.copy()), case.sampler())
        same(device.sample(case.logits, case.sampler(), padding=seen % 3), expected, case.sampling)


def test_a_device_samples_a_row_the_same_alone() -> None:
    random = np.random.default_rng(4)
    logits = (random.standard_normal((14, 300)) * 3).astype(np.float32)
    sampling = [Sampling(seed=row, logprobs=5, **KINDS[row]) for row in range(14)]
    outputs = [some_ids(random, 300, row) for row in range(14)]
    device = Device(300)
    together = device.sample(logits, sampler(sampling, 300, outputs=outputs))
    for row in range(14):
        alone = sampler(sampling[row : row + 1], 300, outputs=outputs[row : row + 1], first_position=row)
        found = device.sample(logits[row : row + 1], alone)
        assert found.ids[0] == together.ids[row]
        assert found.likelihood(0, 5) == together.likelihood(row, 5)  # to the bit


def test_penalties_count_what_the_host_does_not_know_yet() -> None:
    device, logits = Device(50), np.zeros((2, 50), np.float32)
    logits[:, 7] = 2
    greedy = [Sampling(temperature=0.0, frequency_penalty=1.5)] * 2
    first = sampler(greedy, 50, first_position=6)
    assert device.sample(logits, first).ids.tolist() == [7, 7]
    # Positions 6 and 7 of slots 0 and 1 are pending: their ids are not in the history that is sent.
    second = msgspec.structs.replace(
        sampler(greedy, 50, first_position=7, outputs=[[9], [9]]),
        pending_at=np.array([0, 1]),
        pending_slots=np.array([0, 1]),
        pending_positions=np.array([6, 7]),
    )
    logits[:, 11] = 1
    assert device.sample(logits, second, padding=2).ids.tolist() == [11, 11]
    assert device.slots.last[:2].tolist() == [11, 11]
