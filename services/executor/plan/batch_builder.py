"""Lays a plan out as a batch, and takes what a finished batch sampled back into the slots.

Pure: numpy only, no tensors, no clock.
"""

import numpy as np
from numpy.typing import NDArray

from noria.proto.execution import Sampled, Slice, StepPlan
from noria.services.executor.plan.batch import Batch, SampledRow, Slices
from noria.services.executor.plan.limits import ExecutorLimits, Integers
from noria.services.executor.plan.page_tables import pages
from noria.services.executor.plan.sampled_rows import sampling_metadata
from noria.services.executor.plan.sampling_metadata import SamplerOutput
from noria.services.executor.plan.slot_state import SlotState
from noria.services.executor.plan.slot_table import IllegalPlanError, SlotTable

_Booleans = NDArray[np.bool_]


def prepare(slots: SlotTable, plan: StepPlan) -> Batch:
    """Apply a plan and lay it out. Raises IllegalPlanError; the epoch is dead then, whatever was applied of it."""
    try:
        slots.apply(plan)
        return _layout(slots, plan)
    except IllegalPlanError:
        slots.clear()
        raise


def idle_batch(shape: ExecutorLimits) -> Batch:
    """A batch without query tokens, by which a device computes padding alone."""
    slots = SlotTable(shape)
    return _layout(slots, StepPlan(0, 0, ()))


def results(slots: SlotTable, batch: Batch, drawn: SamplerOutput | None) -> tuple[Sampled, ...]:
    """Write what a finished step sampled into the slots. Returns the tokens by stream, in plan order."""
    for state, end in zip(batch.states, (batch.slices.starts + batch.slices.lengths).tolist(), strict=True):
        state.cached = end
    if drawn is None:
        return ()
    ids = drawn.ids.tolist()
    for sampled, token in zip(batch.sampled_rows, ids, strict=True):
        slots.record(sampled.slot, sampled.state, token)
    return tuple(
        _sampled(sampled, row, token, drawn)
        for row, (sampled, token) in enumerate(zip(batch.sampled_rows, ids, strict=True))
    )


def _sampled(sampled: SampledRow, row: int, token: int, drawn: SamplerOutput) -> Sampled:
    state = sampled.state
    wanted = state.sampling.logprobs
    likelihoods = () if wanted is None else (drawn.likelihood(row, wanted),)
    state.likelihoods += likelihoods
    return Sampled(state.stream, state.attempt, sampled.start, (token,), likelihoods)


def _layout(slots: SlotTable, plan: StepPlan) -> Batch:
    shape = slots.shape
    columns = np.array(
        [(each.slot, each.start, each.length, each.carry, each.sample) for each in plan.slices], np.int64
    ).reshape(-1, 5)
    slot, start, length = columns[:, 0], columns[:, 1], columns[:, 2]
    carry, sample = columns[:, 3].astype(np.bool_), columns[:, 4].astype(np.bool_)
    _check(slots, plan.slices, slot, start, length, carry, sample)
    first = np.cumsum(length) - length
    of_slice = np.repeat(np.arange(len(slot)), length)
    positions = np.arange(len(of_slice)) - first[of_slice] + start[of_slice]
    slices = Slices(start.copy(), length.copy(), first)
    batch = Batch(
        epoch=plan.epoch,
        number=plan.number,
        token_ids=slots.tokens[slot[of_slice], positions].astype(np.int64),
        positions=positions,
        carry_rows=first[carry],
        carry_slots=slot[carry],
        slices=slices,
        pages=tuple(pages(slots, group, slot, slices, of_slice, positions) for group in range(len(shape.groups))),
        sampler=sampling_metadata(slots, slot[sample], (first + length - 1)[sample]),
        sampled_rows=_sampled_rows(slots, slot[sample]),
        swap_out=plan.swap_out,
        copies=plan.copies,
        swap_in=plan.swap_in,
        states=tuple(_states(slots, slot)),
    )
    sampled = slot[sample]
    slots.total[sampled] += 1
    slots.sampled[sampled] = True
    return batch


def _check(
    slots: SlotTable,
    slices: tuple[Slice, ...],
    slot: Integers,
    start: Integers,
    length: Integers,
    carry: _Booleans,
    sample: _Booleans,
) -> None:
    shape = slots.shape

    def demand(rule: str, broken: _Booleans) -> None:
        if broken.any():
            raise IllegalPlanError(f"{rule}: {slices[int(np.argmax(broken))]}")

    demand("no such slot", (slot < 0) | (slot >= shape.max_slots))
    if len(np.unique(slot)) != len(slot):
        raise IllegalPlanError("a slot has two slices in one plan")
    if length.sum() > shape.max_batch_tokens:
        raise IllegalPlanError(f"{length.sum()} query tokens, at most {shape.max_batch_tokens} are possible")
    demand("the slot is not filled", np.array([slots.states[each] is None for each in slot], np.bool_))
    total, end = slots.total[slot], start + length
    demand("a slice is empty", (length < 1) | (start < 0))
    demand("the slice reaches beyond the tokens", end > total)
    demand("the slice reaches beyond the context", end > shape.max_model_tokens)
    for group, blocks in zip(shape.groups, slots.blocks, strict=True):
        pages = -(-end // shape.page_size)
        if group.ring_pages:
            pages = np.minimum(pages, group.ring_pages)
        demand("the slice reaches beyond its blocks", pages > blocks[slot])
    demand("only the last token's logits may be sampled", sample & (end != total))
    demand("nothing to carry", carry & ((length != 1) | (end != total) | ~slots.sampled[slot]))
    demand("the token's value is not known yet", ~carry & (end > slots.known[slot]))


def _sampled_rows(slots: SlotTable, slot: Integers) -> tuple[SampledRow, ...]:
    starts = slots.total[slot] - slots.prompt[slot]
    return tuple(
        SampledRow(int(each), state, int(start))
        for each, state, start in zip(slot, _states(slots, slot), starts, strict=True)
    )


def _states(slots: SlotTable, slot: Integers) -> list[SlotState]:
    return [state for each in slot if (state := slots.states[each]) is not None]
