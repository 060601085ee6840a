"""Allocates the paged cache by number: one block allocator for each group of layers over one pool, and pages that streams share.

Every question and allocation is all or nothing over the groups. Amounts are compared over groups in units: a chunk is as many
units as the least common multiple of the groups' blocks in a chunk, a block its part of that.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from math import lcm
from typing import Final

from noria.proto.execution import Geometry
from noria.services.scheduler.core.cache.block_allocators import (
    UNLIMITED,
    Allocator,
    FullAttentionAllocator,
    allocator_for,
)
from noria.services.scheduler.core.cache.chunk_pool import CacheChunkPool
from noria.services.scheduler.core.cache.prefix_index import PrefixIndex
from noria.services.scheduler.core.cache.request_blocks import (
    BlockStateCounts,
    Needs,
    Page,
    Prefix,
    PublishResult,
    RequestBlocks,
)


class CacheAllocator:
    """All block allocators over one pool. `index` is None where pages are not shared.

    pages: how many pages of each group the cache holds; reserved_pages: how many of them are kept for isolated classes.
    largest_tokens: the longest request that the rest could hold alone; whole_tokens: that all of it could.
    """

    def __init__(self, geometry: Geometry, *, sharing: bool = True) -> None:
        self.page_tokens: Final = geometry.page_size
        self.pool: Final = CacheChunkPool(geometry.num_blocks, geometry.reserved_blocks)
        self.allocators: Final[tuple[Allocator, ...]] = tuple(
            allocator_for(group, self.pool, geometry.page_size) for group in geometry.groups
        )
        every = all(isinstance(each, FullAttentionAllocator) for each in self.allocators)
        self.index: Final = PrefixIndex() if sharing and every else None
        self._chunk_units: Final = lcm(*(each.per_chunk for each in self.allocators))
        self._units: Final = tuple(self._chunk_units // each.per_chunk for each in self.allocators)
        self._page_units: Final = sum(self._units)
        self.page: Final = (1,) * len(self.allocators)
        self.size: Final = self.pool.size * self._chunk_units
        self.pages: Final = self.size // self._page_units
        self.promised = 0
        self._model_tokens: Final = geometry.max_model_tokens
        self.reserved_pages = 0
        self.whole_tokens: Final = self._largest(0)
        self.largest_tokens = self.whole_tokens

    @property
    def available(self) -> int:
        """Units that can be given out: blank, spare, or cached and without a user."""
        spare = sum(each.spare * units for each, units in zip(self.allocators, self._units, strict=True))
        cached = self.index.cached * self._page_units if self.index else 0
        return self.pool.blank * self._chunk_units + spare + cached

    @property
    def used(self) -> int:
        """Blocks that requests hold, or that a step in flight still touches."""
        cached = self.index.cached * len(self.allocators) if self.index else 0
        return sum(each.used for each in self.allocators) - cached

    def find(self, prefix: Prefix) -> Sequence[Page]:
        """The published pages that a stream may begin with."""
        return self.index.find(prefix) if self.index else ()

    def open(self, prefix: Prefix, pages: Sequence[Page]) -> RequestBlocks:
        """Block tables that begin with these published pages."""
        if self.index is not None:
            self.index.use(pages)
        tables = tuple([page.blocks[group] for page in pages] for group in range(len(self.allocators)))
        due = (len(pages) + 1) * self.page_tokens if self.index is not None else UNLIMITED
        return RequestBlocks(tables, list(pages), prefix, due)

    def adopt(self, prefix: Prefix, blocks: Sequence[Sequence[int]], length: int) -> RequestBlocks | None:
        """Block tables of blocks that hold `length` positions already; what is full of them is published.

        Where another request has published the same content, its blocks take their place. None, changing nothing, when a block is
        another's, or lacking.
        """
        if len(blocks) != len(self.allocators):
            return None
        counts = [each.pages(length) for each in self.allocators]
        if any(len(table) < count for table, count in zip(blocks, counts, strict=True)):
            return None
        pages = self.index.shared_with(prefix, length // self.page_tokens) if self.index is not None else []
        own = [list(table[len(pages) : count]) for table, count in zip(blocks, counts, strict=True)]
        if not self._claim(own):
            return None
        held = self.open(prefix, pages)
        for table, claimed in zip(held.tables, own, strict=True):
            table.extend(claimed)
        if self.index is not None:
            published = self.publish(held, length)
            assert not published.spare, "what follows an unknown page is unknown"
        return held

    def needs(self, held: Sequence[int], length: int) -> Needs:
        """How many blocks each group lacks to hold `length` positions when its table has so many entries."""
        return tuple(max(0, each.pages(length) - count) for each, count in zip(self.allocators, held, strict=True))

    def lacks(self, held: RequestBlocks, length: int) -> Needs:
        """How many blocks each of a request's tables lacks to hold `length` positions."""
        return self.needs([len(table) for table in held.tables], length)

    def units(self, blocks: Iterable[int]) -> int:
        """So many blocks of each group, in units."""
        return sum(count * units for count, units in zip(blocks, self._units, strict=True))

    def fits(self, needs: Needs, keep: int = 0, spared: int = 0) -> bool:
        """Whether so many blocks of each group can be given out; cached pages but for `keep` are given up for them.

        spared: pages of each group that must remain to be given out beyond that.
        """
        cached = (self.index.cached - keep if self.index else 0) - spared
        chunks = sum(each.chunks(max(0, need - cached)) for each, need in zip(self.allocators, needs, strict=True))
        return chunks <= self.pool.blank

    def keep(self, pages: int) -> None:
        """Keep so many pages of each group for isolated classes, as far as there is room for others then."""
        while pages and not self._largest(pages):
            pages //= 2
        self.reserved_pages = pages
        self.largest_tokens = self._largest(pages)

    def extend(self, held: RequestBlocks, length: int, spared: int = 0) -> tuple[tuple[int, ...], ...] | None:
        """Append the blocks that are missing for `length` positions and return them by group.

        None, changing nothing, when the pool lacks them.
        """
        needs = self.lacks(held, length)
        if not self.fits(needs, 0, spared):
            return None
        while not self._in_hand(needs):
            self._evict()
        added = tuple(tuple(each.take(need)) for each, need in zip(self.allocators, needs, strict=True))
        for table, blocks in zip(held.tables, added, strict=True):
            table.extend(blocks)
        return added

    def room(self, held: RequestBlocks) -> int:
        """How many positions the tables can hold."""
        return min(each.room(table) for each, table in zip(self.allocators, held.tables, strict=True))

    def reachable(self, held: RequestBlocks, length: int, spared: int = 0) -> int:
        """How many positions, `length` at most, the tables can hold with what can be given out."""
        low, high = self.room(held) // self.page_tokens, -(-length // self.page_tokens)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(self.lacks(held, middle * self.page_tokens), 0, spared):
                low = middle
            else:
                high = middle - 1
        return min(length, low * self.page_tokens)

    def gain(self, held: RequestBlocks) -> int:
        """Units that can be given out once a request gives back its blocks: all that nobody else uses."""
        units = self.units(map(len, held.tables))
        if self.index is None:
            return units
        return units - (len(held.pages) - self.index.sole(held.pages)) * self._page_units

    def release(self, held: RequestBlocks) -> None:
        """Take back a request's blocks: published pages stay cached, all others are free."""
        published = len(held.pages)
        for each, table in zip(self.allocators, held.tables, strict=True):
            for block in table[published:]:
                each.give_back(block)
        if self.index is not None:
            self.index.leave(held.pages)

    def publish(self, held: RequestBlocks, end: int) -> PublishResult:
        """Publish every page up to position `end` that is full and of known ids.

        Where another stream has published the same content, its blocks take the place of the request's own.
        """
        result, index, tables = PublishResult(), self.index, held.tables
        assert index is not None
        for number in range(len(held.pages), min(end, held.prefix.known) // self.page_tokens):
            own = tuple(table[number] for table in tables)
            page = index.publish(held.prefix, number, held.pages[-1] if held.pages else None, own)
            if page is None:
                held.due = UNLIMITED
                return result
            held.pages.append(page)
            if page.blocks != own:
                for table, block in zip(tables, page.blocks, strict=True):
                    table[number] = block
                result.replaced.append(number)
                result.spare.append(own)
        held.due = (len(held.pages) + 1) * self.page_tokens
        return result

    def give_back(self, blocks: tuple[int, ...]) -> None:
        """Take back a page that a published one replaced."""
        for each, block in zip(self.allocators, blocks, strict=True):
            each.give_back(block)

    def gather(self, held: RequestBlocks) -> list[dict[int, int]]:
        """Move the blocks of the only request that has any together, so that chunks become free: old to new by group."""
        moved = []
        for each, table in zip(self.allocators, held.tables, strict=True):
            renamed = each.gather(table) if each.per_chunk > 1 else {}
            table[:] = [renamed.get(block, block) for block in table]
            moved.append(renamed)
        for number, page in enumerate(held.pages):
            page.blocks = tuple(table[number] for table in held.tables)
        return moved

    def evictions(self) -> int:
        """How many cached pages were given up since this was last asked."""
        if self.index is None:
            return 0
        count, self.index.evictions = self.index.evictions, 0
        return count

    def counts(self) -> list[BlockStateCounts]:
        """Blocks by state, for each group."""
        cached, shared = (self.index.cached, self.index.shared) if self.index else (0, 0)
        return [
            BlockStateCounts(self.pool.blank * each.per_chunk + each.spare, each.used - cached - shared, shared, cached)
            for each in self.allocators
        ]

    def check(self, tables_held: Sequence[RequestBlocks], spare: Sequence[tuple[int, ...]]) -> None:
        """Raises AssertionError when a block is lost, has two owners, or is miscounted."""
        published: list[Page] = []
        if self.index is not None:
            published = self.index.check([held.pages for held in tables_held])
        for held in tables_held:
            for group, table in enumerate(held.tables):
                assert [page.blocks[group] for page in held.pages] == table[: len(held.pages)]
        chunks: list[int] = []
        for group, each in enumerate(self.allocators):
            own = chain.from_iterable(held.tables[group][len(held.pages) :] for held in tables_held)
            used = [*own, *(page.blocks[group] for page in published), *(blocks[group] for blocks in spare)]
            chunks += each.check(used)
        self.pool.check(chunks)

    def _claim(self, blocks: Sequence[Sequence[int]]) -> bool:
        """Claim blocks of each group, all or none."""
        claimed: list[tuple[Allocator, int]] = []
        for each, own in zip(self.allocators, blocks, strict=True):
            for block in own:
                if not each.claim(block):
                    for allocator, taken in claimed:
                        allocator.give_back(taken)
                    return False
                claimed.append((each, block))
        return True

    def _in_hand(self, needs: Needs) -> bool:
        chunks = sum(each.chunks(need) for each, need in zip(self.allocators, needs, strict=True))
        return chunks <= self.pool.blank

    def _evict(self) -> None:
        assert self.index is not None
        self.give_back(self.index.evict().blocks)

    def _largest(self, kept: int) -> int:
        """The longest request that the pool could hold alone, but for so many pages of each group."""
        low, high = 0, self._model_tokens
        empty = [0] * len(self.allocators)
        while low < high:
            middle = (low + high + 1) // 2
            needs = self.needs(empty, middle)
            pairs = zip(self.allocators, needs, strict=True)
            chunks = sum(-(-(need + kept) // each.per_chunk) for each, need in pairs)
            if chunks <= self.pool.size:
                low = middle
            else:
                high = middle - 1
        return low
