"""A step as flat arrays: the query tokens of all slices one after the other, and how they attend and are sampled.

Pure: numpy only, no tensors, no clock. Token counts are of query tokens (T) and sampled rows (S). A page is named by its
row in the pool for the group's first layer (`Shape.rows`).
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.proto.execution import Copy
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.sampling_metadata import Sampler
from noria.services.executor.plan.slot_state import Occupant

Rows = NDArray[np.int32]


class Slices(msgspec.Struct, frozen=True):
    """By slice: the position of its first query token, how many it has, and its first query row."""

    starts: Integers
    lengths: Integers
    rows: Integers


class Pages(msgspec.Struct, frozen=True):
    """One group's part of a step.

    table [slices, entries]: the pool rows of each slice's pages; page p is entry p, or p % ring where ring is not 0. What
    lies beyond a slot's pages may be a former occupant's, and what lies before its window has been overwritten.
    write_slots [T]: where each query token's keys and values go, in tokens of the pool.
    """

    window: int
    ring: int
    table: Rows
    write_slots: Integers


class Product(msgspec.Struct, frozen=True):
    """Whose token a sampled row is: occupant of `slot`, at output position `start`."""

    slot: int
    occupant: Occupant
    start: int


class Batch(msgspec.Struct, frozen=True):
    """One step, ready for a lane. token_ids and positions are [T]; carried rows take their id on device.

    pages: by group, where its layers write and read. occupants: by slice. Copies are done first, in the order of StepPlan.
    """

    epoch: int
    number: int
    token_ids: Integers
    positions: Integers
    carry_rows: Integers
    carry_slots: Integers
    slices: Slices
    pages: tuple[Pages, ...]
    sampler: Sampler | None
    products: tuple[Product, ...]
    swap_out: tuple[Copy, ...]
    copies: tuple[Copy, ...]
    swap_in: tuple[Copy, ...]
    occupants: tuple[Occupant, ...] = ()


def entry(page: Integers, ring: int) -> Integers:
    """The table entries of a sequence's pages."""
    return page % ring if ring else page


def first_seen(position: Integers, window: int) -> Integers:
    """The first position that a token at `position` sees; window 0 is all."""
    return np.maximum(position - window + 1, 0) if window else np.zeros_like(position)
