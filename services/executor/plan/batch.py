"""A step as flat arrays: the query tokens of all slices one after the other, and how they attend and are sampled.

Pure: numpy only, no tensors, no clock. Token counts are of query tokens (T) and sampled rows (S). A page is named by its
row in the pool for the group's first layer (`Shape.rows`).
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.proto.execution import Copy
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.sampling_metadata import SamplingMetadata
from noria.services.executor.plan.slot_state import SlotState

Rows = NDArray[np.int32]


class Slices(msgspec.Struct, frozen=True):
    """The slices of a step: for each, the position of its first query token, its length and its first query row [slices]."""

    starts: Integers
    lengths: Integers
    rows: Integers


class PageTables(msgspec.Struct, frozen=True):
    """Where one group's layers read and write the cache in a step.

    table [slices, entries]: the pool rows of each slice's pages; page p is entry p, or p % ring where ring is not 0. What
    lies beyond a slot's pages may be a former state's, and what lies before its window has been overwritten.
    write_slots [T]: where each query token's keys and values go, in tokens of the pool.
    """

    window: int
    ring: int
    table: Rows
    write_slots: Integers


class SampledRow(msgspec.Struct, frozen=True):
    """Whose token a sampled row gives: the stream of `slot`, at output position `start`."""

    slot: int
    state: SlotState
    start: int


class Batch(msgspec.Struct, frozen=True):
    """One step as the model runner computes it. token_ids and positions are [T].

    carry_rows: query rows whose id is the last token of carry_slots, which only the device may know yet.

    pages: by group, where its layers write and read. states: by slice. Copies are done first, in the order of StepPlan.
    """

    epoch: int
    number: int
    token_ids: Integers
    positions: Integers
    carry_rows: Integers
    carry_slots: Integers
    slices: Slices
    pages: tuple[PageTables, ...]
    sampler: SamplingMetadata | None
    sampled_rows: tuple[SampledRow, ...]
    swap_out: tuple[Copy, ...]
    copies: tuple[Copy, ...]
    swap_in: tuple[Copy, ...]
    states: tuple[SlotState, ...] = ()


def entry(page: Integers, ring: int) -> Integers:
    """The entries in a block table of pages: the pages themselves, or their places in a ring of `ring` entries."""
    return page % ring if ring else page


def first_seen(position: Integers, window: int) -> Integers:
    """The first position that a token at `position` attends to; window 0 is the whole context."""
    return np.maximum(position - window + 1, 0) if window else np.zeros_like(position)
