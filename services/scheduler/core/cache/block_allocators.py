"""Allocators of block numbers: each cuts the pool's chunks into the blocks of one kind of attention.

A block is one page of each layer of that kind. Chunks in part use are filled first, and a chunk of which no block is in use
goes back to the pool, where another kind may take it. Knows lengths and blocks, not requests.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from noria.proto.execution import Group
from noria.services.scheduler.core.cache.chunk_pool import CacheChunkPool

UNLIMITED: Final = 1 << 62


class BlockAllocator:
    """The blocks of one group of layers: block b is part b % per_chunk of chunk b // per_chunk.

    spare: free blocks of chunks in part use. used: blocks given out.
    """

    def __init__(self, pool: CacheChunkPool, per_chunk: int) -> None:
        self._pool = pool
        self.per_chunk: Final = per_chunk
        self.spare = 0
        self.used = 0
        # Free blocks of each chunk in part use; the chunk begun last is filled first.
        self._free: dict[int, list[int]] = {}

    def chunks(self, count: int) -> int:
        """How many blank chunks it takes to give out so many blocks."""
        return max(0, -(-(count - self.spare) // self.per_chunk))

    def take(self, count: int) -> list[int]:
        """Give out so many blocks; the caller has made sure that the pool has the chunks."""
        self.used += count
        if self.per_chunk == 1:
            return self._pool.take(count)
        taken: list[int] = []
        while len(taken) < count:
            if not self._free:
                (chunk,) = self._pool.take(1)
                first = chunk * self.per_chunk
                self._free[chunk] = list(range(first + self.per_chunk - 1, first - 1, -1))
                self.spare += self.per_chunk
            chunk, free = self._free.popitem()
            while free and len(taken) < count:
                taken.append(free.pop())
                self.spare -= 1
            if free:
                self._free[chunk] = free
        return taken

    def claim(self, block: int) -> bool:
        """Give out this block, which holds somebody's content already; False when it is not free."""
        chunk = block // self.per_chunk
        free = self._free.get(chunk)
        if free is None:
            if not self._pool.claim(chunk):
                return False
            if self.per_chunk > 1:
                first = chunk * self.per_chunk
                free = self._free[chunk] = list(range(first + self.per_chunk - 1, first - 1, -1))
                self.spare += self.per_chunk
        if free is not None:
            if block not in free:
                return False
            free.remove(block)
            self.spare -= 1
            if not free:
                del self._free[chunk]
        self.used += 1
        return True

    def give_back(self, block: int) -> None:
        """Take a block back, and with a chunk's last one give the chunk back to the pool."""
        self.used -= 1
        if self.per_chunk == 1:
            self._pool.give_back(block)
            return
        chunk = block // self.per_chunk
        free = self._free.setdefault(chunk, [])
        free.append(block)
        self.spare += 1
        if len(free) == self.per_chunk:
            del self._free[chunk]
            self.spare -= self.per_chunk
            self._pool.give_back(chunk)

    def gather(self, blocks: Iterable[int]) -> dict[int, int]:
        """Move blocks out of the emptiest chunks in part use into the fullest: old block to new, empty if none gains.

        blocks: every block in use of those chunks. The old ones are free afterwards; the caller copies their content.
        """
        by_chunk: dict[int, list[int]] = {}
        for block in blocks:
            if block // self.per_chunk in self._free:
                by_chunk.setdefault(block // self.per_chunk, []).append(block)
        fullest = sorted(by_chunk, key=lambda chunk: len(by_chunk[chunk]), reverse=True)
        kept = -(-sum(map(len, by_chunk.values())) // self.per_chunk)
        targets = [block for chunk in fullest[:kept] for block in self._free[chunk]]
        moved = dict(zip([block for chunk in fullest[kept:] for block in by_chunk[chunk]], targets, strict=False))
        for target in moved.values():
            chunk = target // self.per_chunk
            self._free[chunk].remove(target)
            if not self._free[chunk]:
                del self._free[chunk]
        self.spare -= len(moved)
        self.used += len(moved)
        for block in moved:
            self.give_back(block)
        return moved

    def check(self, used: Sequence[int]) -> set[int]:
        """Raises AssertionError when a block has two owners or none; returns the chunks that the group has."""
        chunks = {block // self.per_chunk for block in used} | set(self._free)
        free = [block for each in self._free.values() for block in each]
        assert all(0 < len(each) < self.per_chunk for each in self._free.values()), "a whole chunk is not given back"
        every = [*used, *free]
        assert len(every) == len(set(every)) == len(chunks) * self.per_chunk, "a block has two owners or none"
        assert (self.used, self.spare) == (len(used), len(free)), "blocks are miscounted"
        return chunks


class FullAttentionAllocator(BlockAllocator):
    """Blocks of layers that look at every earlier token: a table covers all positions."""

    def __init__(self, pool: CacheChunkPool, page_tokens: int, per_chunk: int) -> None:
        super().__init__(pool, per_chunk)
        self._page_tokens = page_tokens

    def pages(self, length: int) -> int:
        """How many table entries hold a sequence of this length."""
        return -(-length // self._page_tokens)

    def room(self, table: Sequence[int]) -> int:
        """How long a sequence the table can hold."""
        return len(table) * self._page_tokens


class SlidingAttentionAllocator(BlockAllocator):
    """Blocks of layers that look back a window: a table is a ring, page p of the sequence its entry p % ring_pages.

    A ring spans the window and the largest chunk, so that within a step no page is overwritten that the step reads; the
    executor computes steps in order, so that no earlier step reads it any more.
    """

    def __init__(self, pool: CacheChunkPool, page_tokens: int, per_chunk: int, ring_pages: int) -> None:
        super().__init__(pool, per_chunk)
        self._page_tokens = page_tokens
        self._ring_pages = ring_pages

    def pages(self, length: int) -> int:
        """How many table entries hold a sequence of this length."""
        return min(-(-length // self._page_tokens), self._ring_pages)

    def room(self, table: Sequence[int]) -> int:
        """How long a sequence the table can hold."""
        return UNLIMITED if len(table) >= self._ring_pages else len(table) * self._page_tokens


Allocator = FullAttentionAllocator | SlidingAttentionAllocator


def allocator_for(group: Group, pool: CacheChunkPool, page_tokens: int) -> Allocator:
    """The allocator that a group's attention needs."""
    if group.window and group.ring_pages:
        return SlidingAttentionAllocator(pool, page_tokens, group.blocks_per_chunk, group.ring_pages)
    return FullAttentionAllocator(pool, page_tokens, group.blocks_per_chunk)
