"""Where a step's slices lie: which query rows and positions each is, and the pages of the cache it reads and writes.

Tables are copied from the slots, because the next plan changes them while this step is being computed. A page is named
by its row in the pool for the group's first layer (`Shape.rows`).
"""

import numpy as np

from noria.services.executor.plan.batch import Pages, Slices, entry
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.slot_table import Slots


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
