"""What a block costs the scheduler's cache, in caches of growing sizes: `python benchmarks/cache_blocks.py [BLOCKS...]`.

For each size the cache is filled by streams of one length, found again, and filled anew by others, which evicts every
page; then one of full and sliding attention, whose blocks share chunks, is filled and emptied. Printed is the time for
each block touched: it must not grow with the cache.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator

from noria.proto.execution import Geometry, Group
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.cache.request_blocks import Prefix, RequestBlocks

PAGE, STREAM_PAGES = 4, 50
RESERVED = 2
HYBRID = (Group(0, 1, 2), Group(24, 2, 3, 12))
Meter = Callable[[Callable[[], int]], float]
"""Runs a phase, which returns how many blocks it touched; returns microseconds per block."""


def costs(blocks: int, meter: Meter) -> Iterator[tuple[str, float]]:
    """Yield the name and the microseconds per block of each phase, in a cache of so many blocks."""
    made = _FilledCache(CacheAllocator(_geometry(blocks, (Group(0, 1),))), blocks // STREAM_PAGES)
    yield "allocate", meter(lambda: made.allocate(0))
    yield "publish", meter(made.publish)
    yield "free", meter(made.free)
    yield "match", meter(lambda: made.match(0))
    yield "evict", meter(lambda: made.allocate(1))
    hybrid = _FilledCache(CacheAllocator(_geometry(blocks, HYBRID)), blocks * 2 // STREAM_PAGES // 2)
    yield "allocate, hybrid", meter(lambda: hybrid.allocate(0))
    yield "free, hybrid", meter(hybrid.free)


class _FilledCache:
    """A cache with streams of one length."""

    def __init__(self, cache: CacheAllocator, streams: int) -> None:
        self._cache, self._streams = cache, streams
        self._holdings: list[RequestBlocks] = []

    def allocate(self, generation: int) -> int:
        """Allocate all blocks of each stream; another generation has other token ids."""
        length = STREAM_PAGES * PAGE
        self._holdings = [self._cache.open(self._prefix(generation, each), []) for each in range(self._streams)]
        touched = 0
        for holding in self._holdings:
            for end in range(PAGE * 5, length + 1, PAGE * 5):
                added = self._cache.extend(holding, end)
                assert added is not None, "the cache holds them all"
                touched += sum(map(len, added))
        return touched

    def publish(self) -> int:
        """Publish all pages for prefix sharing."""
        for holding in self._holdings:
            self._cache.publish(holding, STREAM_PAGES * PAGE)
        return self._streams * STREAM_PAGES

    def free(self) -> int:
        """Free all streams; published pages stay cached."""
        touched = sum(len(table) for holding in self._holdings for table in holding.tables)
        for holding in self._holdings:
            self._cache.release(holding)
        self._holdings = []
        return touched

    def match(self, generation: int) -> int:
        """Look up each stream's prefix in the cache, take its blocks and free them."""
        found = 0
        for each in range(self._streams):
            prefix = self._prefix(generation, each)
            pages = self._cache.find(prefix)
            found += len(pages)
            self._cache.release(self._cache.open(prefix, pages))
        assert found == self._streams * (STREAM_PAGES - 1), "all but the last page of each is found"
        return found

    @staticmethod
    def _prefix(generation: int, stream: int) -> Prefix:
        ids = (generation, stream, *range(STREAM_PAGES * PAGE - 2))
        return Prefix(b"salt", ids, [], PAGE)


def _geometry(blocks: int, groups: tuple[Group, ...]) -> Geometry:
    return Geometry("bench", groups, blocks + RESERVED, RESERVED, PAGE, 64, 512, STREAM_PAGES * PAGE, 50_000, "", "")


def _microseconds(phase: Callable[[], int]) -> float:
    gc.collect()
    gc.disable()
    begun = time.perf_counter()
    touched = phase()
    spent = time.perf_counter() - begun
    gc.enable()
    return spent / touched * 1e6


def main() -> None:
    """Print a table."""
    sizes = [int(each) for each in sys.argv[1:]] or [1_000, 10_000, 100_000]
    rows: dict[str, list[float]] = {}
    for blocks in sizes:
        best: dict[str, float] = {}
        for _ in range(5):
            for name, cost in costs(blocks, _microseconds):
                best[name] = min(cost, best.get(name, cost))
        for name, cost in best.items():
            rows.setdefault(name, []).append(cost)
    print("us a block" + " " * 10 + "".join(f"{each:>12,}" for each in sizes))
    for name, each in rows.items():
        print(f"{name:<20}" + "".join(f"{cost:>12.2f}" for cost in each))


if __name__ == "__main__":
    main()
