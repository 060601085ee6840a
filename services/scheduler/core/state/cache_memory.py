"""What requests hold of the cache, on the device and on the host, from their admission until no step touches it.

Keeps blocks, steps in flight, published pages and those who wait for pages consistent. Decides nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from noria.proto.execution import Copy, Geometry, Replace, Stash
from noria.services.scheduler.core.cache.block_allocators import UNLIMITED
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.cache.host_pool import HostPool
from noria.services.scheduler.core.cache.request_blocks import BlockStateCounts, HostBlocks, Page, Prefix, RequestBlocks
from noria.services.scheduler.core.state.in_flight_steps import InFlightStep, InFlightSteps, RetiredBlocks
from noria.services.scheduler.core.state.prefix_waiters import PrefixWaiters
from noria.services.scheduler.core.state.request import Request


class CacheMoves(NamedTuple):
    """What a plan moves in the cache: its fields of these names."""

    swap_out: tuple[Copy, ...]
    copies: tuple[Copy, ...]
    swap_in: tuple[Copy, ...]
    replace: tuple[Replace, ...]
    stash: tuple[Stash, ...]


class CacheMemory:
    """One executor's cache and host pool. Made anew, empty, for each executor.

    wake: called with each request whose page has come, or will not.
    """

    def __init__(
        self, geometry: Geometry, in_flight: InFlightSteps, wake: Callable[[Request], None], *, sharing: bool
    ) -> None:
        self.cache: Final = CacheAllocator(geometry, sharing=sharing)
        self.host = HostPool(geometry)
        self.waiters: Final = PrefixWaiters()
        self._geometry = geometry
        self._in_flight = in_flight
        self._wake_request = wake
        self._replaced: dict[RequestBlocks, tuple[Request, list[int]]] = {}
        self._copies: list[Copy] = []

    def prefix(self, request: Request) -> Prefix:
        """The request's ids in pages."""
        if request.cache.prefix is None:
            submission = request.asked.submission
            request.cache.prefix = Prefix(
                submission.salt, submission.prompt_ids, request.progress.output, self.cache.page_tokens
            )
        return request.cache.prefix

    def enter(self, request: Request, pages: int, now_ns: int) -> int:
        """Give a waiting request block tables that begin with so many pages found for it, and with what the host has of it.

        Returns how many positions they hold already.
        """
        prefix, cache, use = self.prefix(request), self.cache, request.cache
        if use.host is None and request.life.started_ns is None:
            use.cached_tokens = min(pages * cache.page_tokens, request.asked.prompt_tokens)
        found = cache.find(prefix)[:pages]
        blocks = cache.open(prefix, found)
        length = len(found) * cache.page_tokens
        stored = use.host
        if stored is not None:
            if stored.length > length:
                added = cache.extend(blocks, stored.length)
                assert added is not None, "who comes back finds room"
                length = stored.length
                self.host.fetch(stored, blocks.tables, len(found))
            else:
                self.host.drop(stored)
            use.host = None
        self._settle(request, blocks, now_ns)
        return length

    def adopt(self, request: Request, blocks: Sequence[Sequence[int]], length: int, now_ns: int) -> bool:
        """Give a waiting request these blocks, which hold `length` positions of it; False when they are not free."""
        adopted = self.cache.adopt(self.prefix(request), blocks, length)
        if adopted is None:
            return False
        self._settle(request, adopted, now_ns)
        return True

    def adopt_stored(self, request: Request, stored: HostBlocks) -> None:
        """Give a waiting request host blocks that were claimed for it."""
        request.cache.host = stored

    def grow(self, request: Request, length: int, spared: int) -> tuple[tuple[int, ...], ...] | None:
        """Allocate for `length` positions of a request; the new blocks by group, or None when they are not there."""
        cache, use = self.cache, request.cache
        assert use.blocks is not None
        added = cache.extend(use.blocks, length, spared)
        if added is None:
            return None
        kept = min(use.promised, cache.units(map(len, added)))
        use.promised -= kept
        cache.promised -= kept
        use.room = cache.room(use.blocks)
        return added

    def _settle(self, request: Request, blocks: RequestBlocks, now_ns: int) -> None:
        cache, use = self.cache, request.cache
        use.blocks, use.room = blocks, cache.room(blocks)
        use.since_ns, use.since_blocks = now_ns, blocks.block_count
        use.promised = cache.units(cache.lacks(blocks, request.known))
        cache.promised += use.promised
        if cache.index is not None:
            self.waiters.claim(request, blocks)

    def needed(self, request: Request, found: Sequence[Page]) -> int:
        """Units for all known tokens of a waiting request, with the unused cached pages that it takes itself."""
        cache = self.cache
        unused = cache.index.unused(found) if cache.index is not None else 0
        needs = cache.needs([len(found)] * len(cache.allocators), request.known)
        return cache.units(needs) + unused * cache.units(cache.page)

    def lacking(self, request: Request, spared: int, margin: float) -> int:
        """Units that a waiting request lacks beyond what is there or comes by itself.

        spared: pages of each group that it must leave to others. margin: the share of the cache that it must leave.
        """
        cache = self.cache
        needed = self.needed(request, self.found(request)) + cache.units(cache.page) * spared + int(margin * cache.size)
        return needed - (cache.available - cache.promised) - self._in_flight.freeing_units

    def change_policy(self) -> None:
        """Let everybody who waits for another's page look again whether it may."""
        self._wake(self.waiters.release_all())

    def leave(self, request: Request, now_ns: int) -> None:
        """Take a request's blocks; those that steps in flight touch are freed after them."""
        use = request.cache
        blocks = use.blocks
        assert blocks is not None
        # What a request holds grows about evenly, so that its mean is that of its beginning and its end.
        held_us = (now_ns - use.since_ns) // 1000
        use.block_us += (use.since_blocks + blocks.block_count) * held_us // 2
        self.cache.promised -= use.promised
        use.promised = use.room = 0
        use.blocks = None
        if request.in_flight:
            self._give_up(blocks, request.work.length // self.cache.page_tokens)
            self._in_flight.retire(request, blocks, self.cache.gain(blocks))
        else:
            self._give_up(blocks, len(blocks.pages))
            self.cache.release(blocks)

    def store(self, request: Request, slot: int) -> bool:
        """Order a running request's cache to be copied to the host; False, changing nothing, when it does not fit."""
        assert request.cache.blocks is not None
        request.cache.host = self.host.store(request.cache.blocks.tables, request.work.length, slot)
        return request.cache.host is not None

    def lose_stored(self, request: Request) -> int:
        """Forget what the host had of a request, whose pool begins empty; returns how many positions that were."""
        stored, request.cache.host = request.cache.host, None
        return stored.length if stored is not None else 0

    def drop(self, request: Request) -> None:
        """Forget what the host has of a request."""
        if request.cache.host is not None:
            self.host.drop(request.cache.host)
            request.cache.host = None

    def publish(self, blocks: RequestBlocks, request: Request, end: int) -> int:
        """Share what is full of a request's blocks: a step has computed its positions up to `end`.

        Returns how many pages had been published by another, whose blocks are used from now on.
        """
        first = len(blocks.pages)
        result = self.cache.publish(blocks, end)
        self._wake(self.waiters.resolve(blocks, first, len(blocks.pages)))
        if blocks.due == UNLIMITED:
            self._give_up(blocks, len(blocks.pages))
        if not result.spare:
            return 0
        if request.cache.blocks is blocks:
            self._replaced.setdefault(blocks, (request, []))[1].extend(result.replaced)
        if request.in_flight:
            self._in_flight.spare(request.work.last_step, result.spare, self.cache.units(self.cache.page))
        else:
            for page in result.spare:
                self.cache.give_back(page)
        return len(result.replaced)

    def free(self, step: InFlightStep) -> list[RetiredBlocks]:
        """Free what waited for a step that is done; returns the block tables that ended with it, and whose they were."""
        for retired in step.retired:
            self._give_up(retired.blocks, len(retired.blocks.pages))
            self.cache.release(retired.blocks)
        for page in step.spare:
            self.cache.give_back(page)
        ended = list(step.retired)
        step.retired.clear()
        step.spare.clear()
        return ended

    def gather(self, request: Request) -> bool:
        """Move the blocks of the only request that holds any together, so that whole chunks become free.

        False when they are together already.
        """
        blocks = request.cache.blocks
        assert blocks is not None and not request.in_flight
        before = [list(table) for table in blocks.tables]
        moved = self.cache.gather(blocks)
        for group, (table, renamed) in enumerate(zip(before, moved, strict=True)):
            self._copies += [Copy(group, block, renamed[block]) for block in table if block in renamed]
            changed = [index for index, block in enumerate(table) if block in renamed]
            if changed:
                self._replaced.setdefault(blocks, (request, []))[1].extend(changed)
        return any(moved)

    def take_moves(self) -> CacheMoves:
        """All that the plan that is being sent moves; each once."""
        replaced = tuple(
            Replace(request.slot, group, index, table[index])
            for blocks, (request, indices) in self._replaced.items()
            if request.cache.blocks is blocks
            for group, table in enumerate(blocks.tables)
            for index in indices
            if index < len(table)
        )
        out, back, stash = self.host.take_moves()
        copies = tuple(self._copies)
        self._replaced.clear()
        self._copies.clear()
        return CacheMoves(out, copies, back, replaced, stash)

    def reopen(self) -> None:
        """Begin a new epoch: no copy that was ordered will be done, so the host pool begins empty."""
        self.host = HostPool(self._geometry)
        self._replaced.clear()
        self._copies.clear()

    def counts(self) -> list[BlockStateCounts]:
        """Blocks by state, for each group."""
        counts = self.cache.counts()
        for count, host in zip(counts, self.host.used, strict=True):
            count.host = host
        return counts

    def start(self, request: Request, pages: int) -> int:
        """The position at which a waiting request would go on, with so many pages found."""
        stored = request.cache.host.length if request.cache.host is not None else 0
        return max(stored, pages * self.cache.page_tokens)

    def found(self, request: Request) -> Sequence[Page]:
        """The published pages a waiting request may begin with; valid until the index changes."""
        return self.cache.find(self.prefix(request))

    def _give_up(self, blocks: RequestBlocks, page: int) -> None:
        if blocks.claimed > page:
            self._wake(self.waiters.give_up(blocks, page))

    def _wake(self, requests: list[Request]) -> None:
        for request in requests:
            self._wake_request(request)


def forget_prefixes(requests: Iterable[Request]) -> None:
    """Cut these requests' ids into pages anew when asked next: the next executor's pages may be of another size."""
    for request in requests:
        request.cache.prefix = None


def mark_oversized(request: Request, *, oversized: bool) -> None:
    """Say whether a request was accepted before so much was kept for isolated classes, and may use that."""
    request.cache.oversized = oversized
