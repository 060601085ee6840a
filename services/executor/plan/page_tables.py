"""Where a step's slices lie: which query rows and positions each is, and the pages of the cache it reads and writes.

Tables are copied from the slots, because the next plan changes them while this step is being computed. A page is named
by its row in the pool for the group's first layer (`Shape.rows`).
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.slot_table import Slots

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


def pages(slots: Slots, group: int, slot: Integers, slices: Slices, of_slice: Integers, positions: Integers) -> Pages:
    """Lay out a group's part: the slot of each slice, the slice and the position of each query token."""
    shape, kind = slots.shape, slots.shape.groups[group]
    longest = int((slices.starts + slices.lengths).max(initial=1))
    entries = kind.ring_pages or -(-longest // shape.page_size)
    blocks = slots.tables[group][:, :entries].take(slot, 0)
    table = shape.rows(group, blocks, shape.num_blocks)
    page, place = np.divmod(positions, shape.page_size)
    rows = table[of_slice, entry(page, kind.ring_pages)].astype(np.int64)
    return Pages(kind.window, kind.ring_pages, table, rows * shape.page_size + place)


def entry(page: Integers, ring: int) -> Integers:
    """The table entries of a sequence's pages."""
    return page % ring if ring else page


def first_seen(position: Integers, window: int) -> Integers:
    """The first position that a token at `position` sees; window 0 is all."""
    return np.maximum(position - window + 1, 0) if window else np.zeros_like(position)
