"""The host pool: blocks of preempted requests whose cache waits on the host, and the copies that the next plan orders.

The executor does a plan's swap-outs first, so that they read complete content and device blocks may be used
again in the same plan; host blocks that it swaps in are free for the plan after it.
"""

from collections.abc import Sequence

from noria.proto.execution import Copy, Geometry, Stash
from noria.services.scheduler.core.cache.block_allocators import BlockAllocator
from noria.services.scheduler.core.cache.chunk_pool import CacheChunkPool
from noria.services.scheduler.core.cache.request_blocks import HostBlocks, Tables


class HostPool:
    """Allocates blocks of host memory, and collects the copies to and from them for the next plan."""

    def __init__(self, geometry: Geometry) -> None:
        self._pool = CacheChunkPool(geometry.host_slots, 0)
        self._blocks = tuple(BlockAllocator(self._pool, group.blocks_per_chunk) for group in geometry.groups)
        self._out: dict[HostBlocks, list[Copy]] = {}
        self._slots: dict[HostBlocks, int] = {}
        self._in: list[Copy] = []
        self._emptied: list[HostBlocks] = []

    @property
    def used(self) -> tuple[int, ...]:
        """Host blocks in use, by group."""
        return tuple(each.used for each in self._blocks)

    def store(self, tables: Tables, length: int, slot: int) -> HostBlocks | None:
        """Take host blocks for all of a request's blocks and order the copies; None when they do not fit.

        slot: the executor's, or -1 where it does not know the request.
        """
        needs = [len(table) for table in tables]
        chunks = sum(each.chunks(need) for each, need in zip(self._blocks, needs, strict=True))
        if not length or chunks > self._pool.blank:
            return None
        host = tuple(tuple(each.take(need)) for each, need in zip(self._blocks, needs, strict=True))
        stored = HostBlocks(host, length)
        self._out[stored] = _copies(tables, host, 0)
        if slot >= 0:
            self._slots[stored] = slot
        return stored

    def claim(self, tables: Sequence[Sequence[int]], length: int) -> HostBlocks | None:
        """Take over host blocks that hold `length` positions already; None, changing nothing, when one is another's."""
        claimed: list[tuple[BlockAllocator, int]] = []
        for each, table in zip(self._blocks, tables, strict=True):
            for block in table:
                if not each.claim(block):
                    for allocator, taken in claimed:
                        allocator.give_back(taken)
                    return None
                claimed.append((each, block))
        return HostBlocks(tuple(map(tuple, tables)), length)

    def fetch(self, stored: HostBlocks, tables: Tables, first: int) -> None:
        """Order the copies back, from table entry `first` on; the host blocks are free after the plan.

        What was stored since the last plan goes to the host and comes back in one plan.
        """
        self._in += _copies(stored.tables, tables, first)
        self._emptied.append(stored)

    def drop(self, stored: HostBlocks) -> None:
        """Forget a request's cache; its host blocks may be used again at once, for the executor works in order."""
        self._out.pop(stored, None)
        self._slots.pop(stored, None)
        for each, table in zip(self._blocks, stored.tables, strict=True):
            for block in table:
                each.give_back(block)

    def take_moves(self) -> tuple[tuple[Copy, ...], tuple[Copy, ...], tuple[Stash, ...]]:
        """The swap-outs and swap-ins for the plan that is being sent, and whose cache goes out; each once."""
        out = tuple(copy for copies in self._out.values() for copy in copies)
        back = tuple(self._in)
        stash = tuple(Stash(slot, stored.length, stored.tables) for stored, slot in self._slots.items())
        self._out.clear()
        self._slots.clear()
        self._in.clear()
        for stored in self._emptied:
            self.drop(stored)
        self._emptied.clear()
        return out, back, stash

    def check(self, stored: list[HostBlocks]) -> None:
        """Raises AssertionError when a host block has two owners or none."""
        chunks: list[int] = []
        for group, each in enumerate(self._blocks):
            chunks += each.check([block for one in stored for block in one.tables[group]])
        self._pool.check(chunks)
        assert set(self._slots) <= set(self._out) <= set(stored) and not self._in and not self._emptied


def _copies(
    sources: tuple[list[int], ...] | tuple[tuple[int, ...], ...],
    targets: tuple[list[int], ...] | tuple[tuple[int, ...], ...],
    first: int,
) -> list[Copy]:
    return [
        Copy(group, source, target)
        for group, (from_table, to_table) in enumerate(zip(sources, targets, strict=True))
        for source, target in zip(from_table[first:], to_table[first : len(from_table)], strict=True)
    ]
