"""A batch laid out for a device: every array where it belongs, padding that harms nobody."""

import msgspec
import numpy as np
import torch

from noria.proto.base import Stream
from noria.proto.execution import Fill, Group, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.cuda.device.step_inputs import StepInputs, host_buffer, inputs
from noria.services.executor.cuda.layout.step_layout import NOBODY, OUTPUT, PROMPT, StepLayout
from noria.services.executor.cuda.layout.step_sizes import SPLIT_TOKENS, GroupSizes, StepSizes, needed
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable

GROUPS = (Group(0, 1), Group(300, 1, ring_pages=30))
SHAPE = ExecutorLimits(4, 2048, 1024, 16, 400, 90, GROUPS)
SAMPLING = (
    Sampling(temperature=0.0),
    Sampling(seed=1 << 63, repetition_penalty=1.2, logprobs=3, logit_bias=((5, 1.5),)),
    Sampling(top_k=7, presence_penalty=0.5),
)


def _batch() -> Batch:
    """One token at position 600, seven from 10 on, one carried."""
    slots = SlotTable(SHAPE)
    lengths = (601, 17, 3)
    fills = tuple(
        Fill(
            slot,
            Stream(slot, 0),
            0,
            tuple(range(10, 10 + min(count, 60))),
            (4,) * (count - min(count, 60)),
            each,
            (),
            _tables(slot),
        )
        for slot, (count, each) in enumerate(zip(lengths, SAMPLING, strict=True))
    )
    first = StepPlan(1, 1, (Slice(2, 0, 3, False, True),), fill=fills)
    second = StepPlan(1, 2, (Slice(0, 600, 1, False, True), Slice(1, 10, 7, False, True), Slice(2, 3, 1, True, True)))
    prepare(slots, first)
    return prepare(slots, second)


def _tables(slot: int) -> tuple[tuple[int, ...], ...]:
    return tuple(range(2 + 40 * slot, 42 + 40 * slot)), tuple(range(200 + 30 * slot, 230 + 30 * slot))


def _laid_out(sizes: StepSizes, batch: Batch, tile_tokens: int = 4) -> StepInputs:
    layout = StepLayout(SHAPE, sizes, tile_tokens)
    buffer = host_buffer(layout)
    buffer.fill_(255)  # whatever a former step left there
    layout.fill(buffer.numpy(), batch)
    return inputs(layout, buffer)


def test_a_batch_needs_what_it_has() -> None:
    batch = _batch()
    sizes = needed(batch, 4)
    assert (sizes.tokens, sizes.slices, sizes.singles, sizes.tiles, sizes.samples) == (9, 3, 2, 2, 3)
    # Position 600 is in the third split; its window of 300 begins in the second. The carried token's keys are in the first.
    assert SPLIT_TOKENS == 256
    assert sizes.groups == (GroupSizes(38, 4), GroupSizes(30, 3))
    assert (sizes.counted, sizes.history, sizes.pending, sizes.biases, sizes.logprobs) == (2, 17 + 1, 1, 1, 20)


def test_arrays_are_a_batch_and_padding() -> None:
    batch = _batch()
    exact = needed(batch, 4)
    more = msgspec.structs.replace(
        exact,
        **{name: getattr(exact, name) + 5 for name in ("tokens", "slices", "singles", "tiles", "samples", "counted")},
        **{name: getattr(exact, name) + 3 for name in ("history", "pending", "biases")},
        groups=tuple(GroupSizes(each.entries + 2, each.splits + 2) for each in exact.groups),
    )
    for sizes, padded in ((exact, 0), (more, 5)):
        step = _laid_out(sizes, batch)
        assert step.token_ids.tolist()[:9] == batch.token_ids.tolist()
        assert step.positions.tolist() == [600, *range(10, 17), 3, *[0] * padded]
        assert step.carry.tolist() == [*[NOBODY] * 8, 2, *[NOBODY] * padded]
        assert step.tiles.tolist() == [[1, 4], [1, 0], *[[NOBODY, NOBODY]] * padded]
        assert step.singles.tolist() == [0, 2, *[NOBODY] * padded]
        assert step.lengths.tolist() == [1, 7, 1, *[0] * padded]
        for group, pages in enumerate(batch.pages):
            found = step.groups[group]
            assert found.table[:3, : pages.table.shape[1]].tolist() == pages.table.tolist()
            assert not found.table[3:].any() and not found.table[:, pages.table.shape[1] :].any()
            assert found.write_slots.tolist() == [*pages.write_slots, *range(16, 16 + padded)]
            assert found.window == GROUPS[group].window
        assert step.groups[0].splits.tolist()[:4] == [[0, 0], [0, 1], [0, 2], [2, 0]]
        assert step.groups[1].splits.tolist()[:3] == [[0, 1], [0, 2], [2, 0]]
        assert (step.groups[1].splits[3:] == NOBODY).all()
        assert step.groups[1].joins.tolist() == [[0, 2], [2, 1], *[[0, 0]] * padded]


def test_what_is_sampled_keeps_its_numbers_and_padding_samples_nobody() -> None:
    batch = _batch()
    exact = needed(batch, 4)
    sizes = msgspec.structs.replace(exact, samples=5, counted=4, history=40, pending=3, biases=2)
    found = _laid_out(sizes, batch).sampled
    assert found.rows.tolist() == [0, 7, 8, 0, 0]
    assert found.slots.tolist() == [0, 1, 2, 4, 4]
    assert found.seed[1].item() == -(1 << 63)
    assert found.scale.tolist()[3:] == [0, 0] and found.logprobs.tolist() == [-1, 3, -1, -1, -1]
    assert found.repetition[1] == np.float32(1.2) and found.least.isneginf().all()
    assert found.counted.tolist() == [1, 2, NOBODY, NOBODY]
    assert found.history_kinds.tolist() == [PROMPT] * 17 + [OUTPUT] + [0] * 23
    assert found.history_rows.tolist()[:18] == [0] * 17 + [1]
    assert found.pending_at.tolist() == [17, 40, 40]
    assert found.pending_slots[0] == 2
    assert found.bias_rows.tolist() == [1, 0] and found.bias_values.tolist() == [1.5, 0]


def test_a_step_that_samples_nothing_has_only_padding() -> None:
    slots = SlotTable(SHAPE)
    fill = Fill(0, Stream(0, 0), 0, tuple(range(20)), (), Sampling(), (), _tables(0))
    batch = prepare(slots, StepPlan(1, 1, (Slice(0, 0, 9, False, False),), fill=(fill,)))
    found = _laid_out(
        msgspec.structs.replace(needed(batch, 4), samples=2, counted=1, biases=1, pending=1), batch
    ).sampled
    assert found.slots.tolist() == [4, 4] and found.counted.tolist() == [NOBODY]
    assert not found.history_kinds.any() and not found.bias_values.any()
    assert torch.equal(found.pending_at, torch.tensor([0], dtype=torch.int32))
