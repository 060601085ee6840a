"""Sampling of all rows at once gives the tokens of the reference, row by row."""

import numpy as np
import pytest
import torch
from fakes.plain_sampling import sample, uniform

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.cpu.philox import uniform as reference_uniform
from noria.services.executor.cpu.reference_sampling import sample as reference
from noria.services.executor.cuda.device.step_inputs import host_buffer, inputs
from noria.services.executor.cuda.device.step_outputs import drawn, output_bytes, outputs
from noria.services.executor.cuda.layout.step_layout import StepLayout
from noria.services.executor.cuda.layout.step_sizes import needed
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable

SHAPE = ExecutorLimits(8, 64, 64, 16, 64, 90)
KINDS = (
    Sampling(temperature=0.0, seed=1),
    Sampling(temperature=1.0, seed=1 << 63),
    Sampling(temperature=0.7, top_k=5, seed=3, logprobs=3),
    Sampling(temperature=1.3, top_p=0.6, seed=4, logit_bias=((5, 6.0), (7, -100.0))),
    Sampling(temperature=1.0, min_p=0.1, seed=5, repetition_penalty=1.5),
    Sampling(temperature=1.0, top_k=9, top_p=0.8, seed=6, presence_penalty=0.9, frequency_penalty=0.4, logprobs=0),
    Sampling(temperature=0.0, seed=7, repetition_penalty=2.0, presence_penalty=1.0),
)


@pytest.mark.parametrize("seed", range(12))
def test_all_rows_at_once_choose_what_the_reference_chooses_row_by_row(seed: int) -> None:
    chance = np.random.default_rng(seed)
    slots = SlotTable(SHAPE)
    fills = tuple(
        Fill(
            slot,
            Stream(slot, 0),
            0,
            tuple(chance.integers(0, 90, 6).tolist()),
            tuple(chance.integers(0, 90, 5).tolist()),
            kind,
            (3,),
            ((2 + slot,),),
        )
        for slot, kind in enumerate(KINDS)
    )
    batch = prepare(
        slots, StepPlan(1, 1, tuple(Slice(slot, 10, 1, False, True) for slot in range(len(KINDS))), fill=fills)
    )
    assert batch.sampler is not None
    layout = StepLayout(SHAPE, needed(batch, 4), 4)
    buffer = host_buffer(layout)
    layout.fill(buffer.numpy(), batch)
    step = inputs(layout, buffer)
    logits = torch.from_numpy(chance.normal(0, 3, (len(KINDS), 90)).astype(np.float32))
    logits[1, 4], logits[2, 9], logits[4, 5] = float("nan"), float("inf"), float("-inf")
    room = torch.zeros(output_bytes(layout.sizes), dtype=torch.uint8)
    sample(logits.clone(), step.sampled, step.sampled.history, outputs(layout.sizes, room))
    found, want = drawn(layout.sizes, room.numpy(), batch.sampler), reference(logits.clone(), batch.sampler)
    assert found.ids.tolist() == want.ids.tolist()
    for row, kind in enumerate(KINDS):
        if kind.logprobs is not None:
            assert found.logprobs[row] == pytest.approx(want.logprobs[row], rel=1e-6)
            assert found.top_ids[row, : kind.logprobs].tolist() == want.top_ids[row, : kind.logprobs].tolist()


def test_the_same_numbers_come_from_the_same_seeds_and_positions() -> None:
    seeds = np.array([0, 1, (1 << 64) - 1, 0x9E3779B97F4A7C15], np.uint64)
    positions = np.array([0, 5, 1 << 40, 77], np.int64)
    found = uniform(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions))
    assert found.tolist() == reference_uniform(seeds, positions).tolist()
