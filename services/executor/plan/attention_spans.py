"""One group's attention of a step, cut into spans of keys for the reference attention, as flat arrays.

Pages are listed in whole chunks of keys, padded with the zero page, and a chunk begins at a multiple of its size in the
sequence wherever a window or slice begins: so sums do not depend on how the sequence was cut.
"""

import msgspec
import numpy as np

from noria.services.executor.plan.batch import PageTables, Slices, entry, first_seen
from noria.services.executor.plan.limits import ExecutorLimits, Integers


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


class AttentionSpan(msgspec.Struct, frozen=True):
    """A slice of several tokens: query rows `row` … `row + length - 1` at positions from `start`.

    pages [chunks, pages per chunk], from the sequence's chunk number `level`.
    """

    row: int
    length: int
    start: int
    level: int
    pages: Integers


class AttentionReads(msgspec.Struct, frozen=True):
    """All that the attention of one group's layers reads in a step."""

    singles: SingleQueries | None
    spans: tuple[AttentionSpan, ...]


def attention_reads(shape: ExecutorLimits, slices: Slices, pages: PageTables) -> AttentionReads:
    """Cut one group's slices into spans of keys."""
    one = slices.lengths == 1
    return AttentionReads(
        singles=_singles(shape, slices, pages, np.flatnonzero(one)),
        spans=tuple(_span(shape, slices, pages, int(index)) for index in np.flatnonzero(~one)),
    )


def _rows(pages: PageTables, index: Integers, columns: Integers, first: Integers, end: Integers) -> Integers:
    """Pool rows of the pages `columns` of slices; pages before `first` or from `end` on are the zero page."""
    entries = np.minimum(entry(columns, pages.ring), pages.table.shape[1] - 1)
    inside = (columns >= first) & (columns < end)
    return np.where(inside, pages.table[index, entries].astype(np.int64), 0)


def _span(shape: ExecutorLimits, slices: Slices, pages: PageTables, index: int) -> AttentionSpan:
    row, start, length = (int(part[index]) for part in (slices.rows, slices.starts, slices.lengths))
    chunk = shape.pages_per_span * shape.page_size
    first = first_seen(np.array(start), pages.window)
    level, chunks = int(first) // chunk, -(-(start + length) // chunk)
    columns = np.arange(level * shape.pages_per_span, chunks * shape.pages_per_span)
    end = np.array(-(-(start + length) // shape.page_size))
    rows = _rows(pages, np.array(index), columns, first // shape.page_size, end)
    return AttentionSpan(row, length, start, level, rows.reshape(chunks - level, shape.pages_per_span))


def _singles(shape: ExecutorLimits, slices: Slices, pages: PageTables, index: Integers) -> SingleQueries | None:
    if not len(index):
        return None
    chunk = shape.pages_per_span * shape.page_size
    context = slices.starts[index] + 1
    base = first_seen(context - 1, pages.window) // chunk
    chunks = -(-context // chunk) - base
    order = np.argsort(-chunks, kind="stable")
    index, context, base, chunks = index[order], context[order], base[order], chunks[order]
    first = first_seen(context - 1, pages.window)
    first_page, end_page = (first // shape.page_size)[:, None], -(-context // shape.page_size)[:, None]
    counts, members, found, firsts, ends = [], [], [], [], []
    for level in range(int(chunks[0])):
        count = int(np.count_nonzero(chunks > level))
        number = base[:count] + level
        columns = number[:, None] * shape.pages_per_span + np.arange(shape.pages_per_span)
        counts.append(count)
        members.append(np.arange(count))
        found.append(_rows(pages, index[:count, None], columns, first_page[:count], end_page[:count]))
        firsts.append(np.maximum(first[:count] - number * chunk, 0))
        ends.append(np.minimum(context[:count] - number * chunk, chunk))
    return SingleQueries(
        rows=slices.rows[index],
        counts=tuple(counts),
        members=np.concatenate(members),
        pages=np.concatenate(found),
        firsts=np.concatenate(firsts),
        ends=np.concatenate(ends),
    )
