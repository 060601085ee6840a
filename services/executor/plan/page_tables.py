"""Builds the page tables of a step from the slots' block tables.

Tables are copied from the slots, because the next plan changes them while this step is being computed. A page is named
by its row in the pool for the group's first layer (`Shape.rows`).
"""

import numpy as np

from noria.services.executor.plan.batch import PageTables, Slices, entry
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.slot_table import SlotTable


def pages(
    slots: SlotTable, group: int, slot: Integers, slices: Slices, of_slice: Integers, positions: Integers
) -> PageTables:
    """Build one group's page tables. slot: by slice; of_slice, positions: by query token, its slice and position."""
    shape, kind = slots.shape, slots.shape.groups[group]
    longest = int((slices.starts + slices.lengths).max(initial=1))
    entries = kind.ring_pages or -(-longest // shape.page_size)
    blocks = slots.tables[group][:, :entries].take(slot, 0)
    table = shape.rows(group, blocks, shape.num_chunks)
    page, place = np.divmod(positions, shape.page_size)
    rows = table[of_slice, entry(page, kind.ring_pages)].astype(np.int64)
    return PageTables(kind.window, kind.ring_pages, table, rows * shape.page_size + place)
