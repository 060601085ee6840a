"""The paged cache's block numbers: a pool of chunks, and allocators that cut them into blocks for one group each.

Knows lengths and blocks, not requests. A chunk is one block of either kind today; groups share the pool.
"""

from collections.abc import Sequence
from typing import Final

from noria.proto.execution import Geometry

Tables = tuple[list[int], ...]


class CachePool:
    """Chunks `reserved` to `total - 1`; the first ones are padding targets and never given out."""

    def __init__(self, total: int, reserved: int) -> None:
        self._reserved = reserved
        self._total = total
        # Last freed, first given: its memory is warm, and a fault in reuse shows early.
        self._blank = list(range(total - 1, reserved - 1, -1))
        self.size: Final = total - reserved

    @property
    def blank(self) -> int:
        """How many chunks hold nothing."""
        return len(self._blank)

    def take(self, count: int) -> list[int]:
        """Give out so many chunks; the caller has made sure that they are there."""
        assert count <= len(self._blank)
        if count == 1:
            return [self._blank.pop()]
        taken = self._blank[-count:]
        del self._blank[-count:]
        return taken

    def give_back(self, chunks: Sequence[int]) -> None:
        """Take chunks back; they are blank from now on."""
        self._blank.extend(chunks)

    def check(self, used: Sequence[int]) -> None:
        """No chunk has two owners, none is lost, none is reserved."""
        every = [*self._blank, *used]
        assert len(every) == len(set(every)) == self.size, "a chunk has two owners or none"
        assert all(self._reserved <= chunk < self._total for chunk in every)


class FullAttentionAllocator:
    """Blocks of a group whose layers look at every earlier token: a table covers all positions."""

    def __init__(self, pool: CachePool, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size

    def missing(self, table: Sequence[int], length: int) -> int:
        """How many chunks the table lacks to hold `length` positions."""
        return max(0, -(-length // self._page_size) - len(table))

    def extend(self, table: list[int], length: int) -> tuple[int, ...]:
        """Append what is missing for `length` positions and return it; the pool must have it."""
        count = self.missing(table, length)
        if not count:
            return ()
        blocks = self._pool.take(count)
        table.extend(blocks)
        return tuple(blocks)

    def room(self, table: Sequence[int]) -> int:
        """How many positions the table can hold."""
        return len(table) * self._page_size

    def release(self, table: Sequence[int]) -> None:
        """Give back every block of the table."""
        self._pool.give_back(table)

    def largest(self, chunks: int) -> int:
        """How many positions one request could hold with so many chunks."""
        return chunks * self._page_size


class Cache:
    """All allocators over one pool: every question and allocation is all or nothing over the groups."""

    def __init__(self, geometry: Geometry) -> None:
        self.pool: Final = CachePool(geometry.num_blocks, geometry.reserved_blocks)
        self.allocators: Final = tuple(FullAttentionAllocator(self.pool, geometry.page_size) for _ in geometry.groups)
        self.promised = 0

    def empty(self) -> Tables:
        """The tables of a request that holds nothing."""
        return tuple([] for _ in self.allocators)

    def missing(self, tables: Tables, length: int) -> int:
        """How many chunks the tables together lack to hold `length` positions."""
        return sum(each.missing(table, length) for each, table in zip(self.allocators, tables, strict=True))

    def extend(self, tables: Tables, length: int) -> tuple[tuple[int, ...], ...] | None:
        """Append what is missing and return it by group, or None, changing nothing, when the pool lacks it."""
        if self.missing(tables, length) > self.pool.blank:
            return None
        return tuple(each.extend(table, length) for each, table in zip(self.allocators, tables, strict=True))

    def room(self, tables: Tables) -> int:
        """How many positions the tables can hold."""
        return min(each.room(table) for each, table in zip(self.allocators, tables, strict=True))

    def reachable(self, tables: Tables) -> int:
        """How many positions the tables can hold with the pool's blank chunks shared evenly among the groups."""
        share = self.pool.blank // len(self.allocators)
        return min(each.room(table) + each.largest(share) for each, table in zip(self.allocators, tables, strict=True))

    def release(self, tables: Tables) -> None:
        """Give back everything."""
        for each, table in zip(self.allocators, tables, strict=True):
            each.release(table)

    @property
    def largest_tokens(self) -> int:
        """The longest request that the cache could ever hold."""
        share = self.pool.size // len(self.allocators)
        return min(each.largest(share) for each in self.allocators)
