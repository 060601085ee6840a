"""Lays a plan out as a batch, and takes what a finished batch sampled back into the slots.

Pure: numpy only, no tensors, no clock.
"""

import numpy as np
from numpy.typing import NDArray

from noria.proto.execution import Sampled, Slice, StepPlan
from noria.services.executor.plan.batch import Batch, Product, Slices
from noria.services.executor.plan.limits import Integers, Shape
from noria.services.executor.plan.page_tables import pages
from noria.services.executor.plan.sampled_rows import sampled_rows
from noria.services.executor.plan.sampling_metadata import Drawn
from noria.services.executor.plan.slot_state import Occupant
from noria.services.executor.plan.slot_table import IllegalPlanError, Slots

_Booleans = NDArray[np.bool_]


def prepare(slots: Slots, plan: StepPlan) -> Batch:
    """Apply a plan and lay it out. Raises IllegalPlanError; the epoch is dead then, whatever was applied of it."""
    try:
        slots.apply(plan)
        return _layout(slots, plan)
    except IllegalPlanError:
        slots.clear()
        raise


def idle_batch(shape: Shape) -> Batch:
    """A step of nobody: what a device is given to compute padding alone."""
    slots = Slots(shape)
    return _layout(slots, StepPlan(0, 0, ()))


def results(slots: Slots, batch: Batch, drawn: Drawn | None) -> tuple[Sampled, ...]:
    """Take what a finished step computed and sampled into the slots and name whose it is, in plan order."""
    for occupant, end in zip(batch.occupants, (batch.slices.starts + batch.slices.lengths).tolist(), strict=True):
        occupant.cached = end
    if drawn is None:
        return ()
    ids = drawn.ids.tolist()
    for product, token in zip(batch.products, ids, strict=True):
        slots.record(product.slot, product.occupant, token)
    return tuple(
        _sampled(product, row, token, drawn)
        for row, (product, token) in enumerate(zip(batch.products, ids, strict=True))
    )


def _sampled(product: Product, row: int, token: int, drawn: Drawn) -> Sampled:
    occupant = product.occupant
    wanted = occupant.sampling.logprobs
    likelihoods = () if wanted is None else (drawn.likelihood(row, wanted),)
    occupant.likelihoods += likelihoods
    return Sampled(occupant.stream, occupant.attempt, product.start, (token,), likelihoods)


def _layout(slots: Slots, plan: StepPlan) -> Batch:
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
        sampler=sampled_rows(slots, slot[sample], (first + length - 1)[sample]),
        products=_products(slots, slot[sample]),
        swap_out=plan.swap_out,
        copies=plan.copies,
        swap_in=plan.swap_in,
        occupants=tuple(_occupants(slots, slot)),
    )
    sampled = slot[sample]
    slots.total[sampled] += 1
    slots.sampled[sampled] = True
    return batch


def _check(
    slots: Slots,
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
    demand("the slot is not filled", np.array([slots.occupants[each] is None for each in slot], np.bool_))
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


def _products(slots: Slots, slot: Integers) -> tuple[Product, ...]:
    starts = slots.total[slot] - slots.prompt[slot]
    return tuple(
        Product(int(each), occupant, int(start))
        for each, occupant, start in zip(slot, _occupants(slots, slot), starts, strict=True)
    )


def _occupants(slots: Slots, slot: Integers) -> list[Occupant]:
    return [occupant for each in slot if (occupant := slots.occupants[each]) is not None]
