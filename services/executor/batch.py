"""A plan as flat arrays: the query tokens of all slices one after the other, and how they attend and are sampled.

Pure: numpy only, no tensors, no clock. Token counts are of query tokens (T), single-token slices (B) and sampled
rows (S); pages are listed in whole chunks, padded with block 0.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.proto.base import Sampling
from noria.proto.execution import Copy, Sampled, Slice, StepPlan
from noria.services.executor.slots import IllegalPlanError, Occupant, Slots

Integers = NDArray[np.int64]


class SingleQueries(msgspec.Struct, frozen=True):
    """Slices of one token each, longest context first, cut into chunks of keys.

    rows [B]: their query tokens. counts: how many of them reach chunk 0, 1, …; the chunks lie in that order, so chunk
    level c holds the first counts[c] slices. pages [sum(counts), pages per chunk]. lengths [sum(counts)]: keys that
    count in each. members [sum(counts)]: index into rows.
    """

    rows: Integers
    counts: tuple[int, ...]
    members: Integers
    pages: Integers
    lengths: Integers


class Span(msgspec.Struct, frozen=True):
    """A slice of several tokens: query rows `row` … `row + length - 1` at positions from `start`.

    pages [chunks, pages per chunk].
    """

    row: int
    length: int
    start: int
    pages: Integers


class Sampler(msgspec.Struct, frozen=True):
    """What to sample, by row [S]: its query token, slot, and parameters.

    positions: absolute position of the token to be sampled, the counter of its randomness. The pairs (masked_rows,
    masked_ids) may not be sampled yet.
    """

    rows: Integers
    slots: Integers
    positions: Integers
    temperature: NDArray[np.float64]
    top_k: Integers
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    seeds: NDArray[np.uint64]
    masked_rows: Integers
    masked_ids: Integers


class Product(msgspec.Struct, frozen=True):
    """Whose token a sampled row is: occupant of `slot`, at output position `start`."""

    slot: int
    occupant: Occupant
    start: int


class Batch(msgspec.Struct, frozen=True):
    """One step, ready for a lane. token_ids, positions and write_slots are [T]; carried rows take their id on device."""

    epoch: int
    number: int
    token_ids: Integers
    positions: Integers
    write_slots: Integers
    carry_rows: Integers
    carry_slots: Integers
    singles: SingleQueries | None
    spans: tuple[Span, ...]
    sampler: Sampler | None
    products: tuple[Product, ...]
    copies: tuple[Copy, ...]


def prepare(slots: Slots, plan: StepPlan) -> Batch:
    """Apply a plan and lay it out. Raises IllegalPlanError; the epoch is dead then, whatever was applied of it."""
    try:
        slots.apply(plan)
        return _layout(slots, plan)
    except IllegalPlanError:
        slots.clear()
        raise


def results(slots: Slots, batch: Batch, ids: Sequence[int]) -> tuple[Sampled, ...]:
    """Take the sampled ids of a finished step into the slots and name whose they are, in plan order."""
    for product, token in zip(batch.products, ids, strict=True):
        slots.record(product.slot, product.occupant, token)
    return tuple(
        Sampled(product.occupant.stream, product.occupant.attempt, product.start, (token,))
        for product, token in zip(batch.products, ids, strict=True)
    )


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
    of_slot = slot[of_slice]
    blocks = slots.tables[of_slot, positions // shape.page_size].astype(np.int64)
    batch = Batch(
        epoch=plan.epoch,
        number=plan.number,
        token_ids=slots.tokens[of_slot, positions].astype(np.int64),
        positions=positions,
        write_slots=blocks * shape.page_size + positions % shape.page_size,
        carry_rows=first[carry],
        carry_slots=slot[carry],
        singles=_singles(slots, slot[length == 1], start[length == 1] + 1, first[length == 1]),
        spans=tuple(
            Span(int(first[i]), int(length[i]), int(start[i]), _pages(slots, slot[i], int(start[i] + length[i])))
            for i in np.flatnonzero(length > 1)
        ),
        sampler=_sampler(slots, slot[sample], (first + length - 1)[sample]),
        products=_products(slots, slot[sample]),
        copies=plan.copies,
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
    carry: NDArray[np.bool_],
    sample: NDArray[np.bool_],
) -> None:
    shape = slots.shape

    def demand(rule: str, broken: NDArray[np.bool_]) -> None:
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
    demand("the slice reaches beyond its blocks", end > slots.blocks[slot] * shape.page_size)
    demand("only the last token's logits may be sampled", sample & (end != total))
    demand("nothing to carry", carry & ((length != 1) | (end != total) | ~slots.sampled[slot]))
    demand("the token's value is not known yet", ~carry & (end > slots.known[slot]))


def _pages(slots: Slots, slot: int, context: int) -> Integers:
    shape = slots.shape
    chunks = -(-context // (shape.pages_per_chunk * shape.page_size))
    pages = np.zeros(chunks * shape.pages_per_chunk, np.int64)
    used = -(-context // shape.page_size)
    pages[:used] = slots.tables[slot, :used]
    return pages.reshape(chunks, shape.pages_per_chunk)


def _singles(slots: Slots, slot: Integers, context: Integers, row: Integers) -> SingleQueries | None:
    if not len(slot):
        return None
    shape = slots.shape
    chunk = shape.pages_per_chunk * shape.page_size
    chunks = -(-context // chunk)
    order = np.argsort(-chunks, kind="stable")
    slot, context, row, chunks = slot[order], context[order], row[order], chunks[order]
    used = -(-context // shape.page_size)
    counts, members, pages, lengths = [], [], [], []
    for level in range(int(chunks[0])):
        count = int(np.count_nonzero(chunks > level))
        columns = np.arange(level * shape.pages_per_chunk, (level + 1) * shape.pages_per_chunk)
        counts.append(count)
        members.append(np.arange(count))
        # What lies beyond a slot's pages may be a former occupant's: read the zero block instead.
        pages.append(np.where(columns < used[:count, None], slots.tables[slot[:count, None], columns], 0))
        lengths.append(np.minimum(context[:count] - level * chunk, chunk))
    return SingleQueries(
        rows=row,
        counts=tuple(counts),
        members=np.concatenate(members),
        pages=np.concatenate(pages).astype(np.int64),
        lengths=np.concatenate(lengths),
    )


def _sampler(slots: Slots, slot: Integers, rows: Integers) -> Sampler | None:
    if not len(slot):
        return None
    occupants = _occupants(slots, slot)
    sampling: list[Sampling] = [occupant.sampling for occupant in occupants]
    produced = slots.total[slot] - slots.prompt[slot]
    masked = [
        (row, end)
        for row, occupant in enumerate(occupants)
        if produced[row] < occupant.sampling.min_tokens
        for end in occupant.end_ids
    ]
    pairs = np.array(masked, np.int64).reshape(-1, 2)
    return Sampler(
        rows=rows,
        slots=slot,
        positions=slots.total[slot],
        temperature=np.array([each.temperature for each in sampling]),
        top_k=np.array([each.top_k for each in sampling], np.int64),
        top_p=np.array([each.top_p for each in sampling]),
        min_p=np.array([each.min_p for each in sampling]),
        seeds=np.array([(each.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF for each in sampling], np.uint64),
        masked_rows=pairs[:, 0],
        masked_ids=pairs[:, 1],
    )


def _products(slots: Slots, slot: Integers) -> tuple[Product, ...]:
    starts = slots.total[slot] - slots.prompt[slot]
    return tuple(
        Product(int(each), occupant, int(start))
        for each, occupant, start in zip(slot, _occupants(slots, slot), starts, strict=True)
    )


def _occupants(slots: Slots, slot: Integers) -> list[Occupant]:
    return [occupant for each in slot if (occupant := slots.occupants[each]) is not None]
