"""One group's part of a step as the lists that FlashInfer's paged attention takes.

Pure: numpy only. A sequence is the pages that its slice can see, so a window's begins at a page; queries are its last
tokens. Behind a step's slices stand padding slices without queries, and one more that has all padding tokens: they read
chunk 0.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.services.executor.cuda.layout.step_sizes import StepSizes, ranks
from noria.services.executor.plan.batch import PageTables, Slices, entry, first_seen

Words = NDArray[np.int32]


class PagedLists(msgspec.Struct, frozen=True):
    """Where each sequence's queries [n + 1] and pages [n + 1] begin, its pages, and how many tokens its last page has [n]."""

    queries: Words
    starts: Words
    pages: Words
    last_tokens: Words


def most_pages(sizes: StepSizes, group: int, page_size: int) -> int:
    """Pages that the lists of steps of these sizes have at most."""
    return sizes.slices * (sizes.groups[group].entries + 1) + 1 + -(-sizes.tokens // page_size)


def paged_lists(slices: Slices, part: PageTables, sizes: StepSizes, page_size: int) -> PagedLists:
    """Lay out sizes.slices + 1 sequences with sizes.tokens queries."""
    real, spare = len(slices.starts), sizes.slices - len(slices.starts)
    ends = slices.starts + slices.lengths
    first = first_seen(slices.starts, part.window) // page_size
    counts = -(-ends // page_size) - first
    owners, rank = ranks(counts)
    found = part.table[owners, entry(first[owners] + rank, part.ring)]
    padding = sizes.tokens - int(slices.lengths.sum())
    behind = max(1, -(-padding // page_size))
    lengths = np.concatenate((slices.lengths, np.zeros(spare, np.int64), [padding]))
    counts = np.concatenate((counts, np.ones(spare, np.int64), [behind]))
    last = np.concatenate(((ends - 1) % page_size + 1, np.ones(spare, np.int64), [(padding - 1) % page_size + 1]))
    assert len(lengths) == real + spare + 1
    return PagedLists(
        _begins(lengths),
        _begins(counts),
        np.concatenate((found, np.zeros(spare + behind, np.int32))).astype(np.int32),
        last.astype(np.int32),
    )


def _begins(counts: NDArray[np.int64]) -> Words:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))).astype(np.int32)
