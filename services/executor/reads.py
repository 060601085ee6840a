"""Where one group's layers write a step's keys and values, and which pages each slice reads, as flat arrays.

Pages are listed in whole chunks of keys, padded with the zero page, and a chunk begins at a multiple of its size in the
sequence wherever a window or slice begins: so sums do not depend on how the sequence was cut. A page is named by its row
in the pool for the group's first layer (`Shape.rows`).
"""

import msgspec
import numpy as np

from noria.services.executor.shape import Integers, Shape
from noria.services.executor.slots import Slots


class SingleQueries(msgspec.Struct, frozen=True):
    """Slices of one token each, those with the most chunks first.

    rows [B]: their query tokens. counts: how many of them have a first chunk, a second, …; the chunks lie in that
    order, so level c holds the c-th chunk of the first counts[c] slices. pages [sum(counts), pages per chunk]. Of each
    chunk's keys those from firsts [sum(counts)] to before ends [sum(counts)] count. members [sum(counts)]: index into
    rows.
    """

    rows: Integers
    counts: tuple[int, ...]
    members: Integers
    pages: Integers
    firsts: Integers
    ends: Integers


class Span(msgspec.Struct, frozen=True):
    """A slice of several tokens: query rows `row` … `row + length - 1` at positions from `start`.

    pages [chunks, pages per chunk], from the sequence's chunk number `level`.
    """

    row: int
    length: int
    start: int
    level: int
    pages: Integers


class Reads(msgspec.Struct, frozen=True):
    """One group's part of a step. write_slots [T]: rows of tokens in the pool, as of the group's first layer."""

    write_slots: Integers
    singles: SingleQueries | None
    spans: tuple[Span, ...]


def reads(
    slots: Slots,
    group: int,
    slot: Integers,
    start: Integers,
    length: Integers,
    first: Integers,
    of_slot: Integers,
    positions: Integers,
) -> Reads:
    """Lay out a group's part: slot, start, length and first row of each slice, slot and position of each query token."""
    shape = slots.shape
    blocks = slots.tables[group][of_slot, _entries(shape, group, positions // shape.page_size)].astype(np.int64)
    one = length == 1
    return Reads(
        write_slots=shape.rows(group, blocks, shape.num_blocks) * shape.page_size + positions % shape.page_size,
        singles=_singles(slots, group, slot[one], start[one] + 1, first[one]),
        spans=tuple(
            _span(slots, group, int(slot[i]), int(first[i]), int(start[i]), int(length[i]))
            for i in np.flatnonzero(~one)
        ),
    )


def _entries(shape: Shape, group: int, pages: Integers) -> Integers:
    """The table entries of a sequence's pages."""
    ring = shape.groups[group].ring_pages
    return pages % ring if ring else pages


def _first_seen(shape: Shape, group: int, position: Integers) -> Integers:
    """The first position that a token at `position` sees."""
    window = shape.groups[group].window
    return np.maximum(position - window + 1, 0) if window else np.zeros_like(position)


def _rows(slots: Slots, group: int, slot: Integers, columns: Integers, first: Integers, end: Integers) -> Integers:
    """Pool rows of the pages `columns` of slots; pages before `first` or from `end` on are the zero page.

    What lies beyond a slot's pages may be a former occupant's, and what lies before its window has been overwritten.
    """
    table = slots.tables[group]
    entries = np.minimum(_entries(slots.shape, group, columns), table.shape[1] - 1)
    inside = (columns >= first) & (columns < end)
    rows = slots.shape.rows(group, table[slot, entries].astype(np.int64), slots.shape.num_blocks)
    return np.where(inside, rows, 0)


def _span(slots: Slots, group: int, slot: int, row: int, start: int, length: int) -> Span:
    shape = slots.shape
    chunk = shape.pages_per_chunk * shape.page_size
    first = _first_seen(shape, group, np.array(start))
    level, chunks = int(first) // chunk, -(-(start + length) // chunk)
    columns = np.arange(level * shape.pages_per_chunk, chunks * shape.pages_per_chunk)
    end = np.array(-(-(start + length) // shape.page_size))
    pages = _rows(slots, group, np.array(slot), columns, first // shape.page_size, end)
    return Span(row, length, start, level, pages.reshape(chunks - level, shape.pages_per_chunk))


def _singles(slots: Slots, group: int, slot: Integers, context: Integers, row: Integers) -> SingleQueries | None:
    if not len(slot):
        return None
    shape = slots.shape
    chunk = shape.pages_per_chunk * shape.page_size
    first = _first_seen(shape, group, context - 1)
    base = first // chunk
    chunks = -(-context // chunk) - base
    order = np.argsort(-chunks, kind="stable")
    slot, context, row, chunks = slot[order], context[order], row[order], chunks[order]
    first, base = first[order], base[order]
    first_page, end_page = (first // shape.page_size)[:, None], -(-context // shape.page_size)[:, None]
    counts, members, pages, firsts, ends = [], [], [], [], []
    for level in range(int(chunks[0])):
        count = int(np.count_nonzero(chunks > level))
        number = base[:count] + level
        columns = number[:, None] * shape.pages_per_chunk + np.arange(shape.pages_per_chunk)
        counts.append(count)
        members.append(np.arange(count))
        pages.append(_rows(slots, group, slot[:count, None], columns, first_page[:count], end_page[:count]))
        firsts.append(np.maximum(first[:count] - number * chunk, 0))
        ends.append(np.minimum(context[:count] - number * chunk, chunk))
    return SingleQueries(
        rows=row,
        counts=tuple(counts),
        members=np.concatenate(members),
        pages=np.concatenate(pages),
        firsts=np.concatenate(firsts),
        ends=np.concatenate(ends),
    )
