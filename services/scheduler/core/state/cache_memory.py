"""What requests hold of the cache, on the device and on the host, from their admission until no step touches it.

The moves that keep blocks, steps in flight, published pages and those who wait for them consistent. Decides nothing.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from noria.proto.execution import Copy, Geometry, Replace, Stash
from noria.services.scheduler.core.cache.block_allocators import UNLIMITED
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.cache.host_pool import HostPool
from noria.services.scheduler.core.cache.pages import Page, Prefix
from noria.services.scheduler.core.cache.request_blocks import BlockStateCounts, RequestBlocks
from noria.services.scheduler.core.state.in_flight_steps import InFlightStep, InFlightSteps, RetiredBlocks
from noria.services.scheduler.core.state.prefix_waiters import PrefixWaiters
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.waiting_queue import WaitingQueue


class CacheMoves(NamedTuple):
    """What a plan moves: its fields of these names."""

    swap_out: tuple[Copy, ...]
    copies: tuple[Copy, ...]
    swap_in: tuple[Copy, ...]
    replace: tuple[Replace, ...]
    stash: tuple[Stash, ...]


class CacheMemory:
    """One executor's cache and host pool. Made anew, empty, for each executor."""

    def __init__(self, geometry: Geometry, lane: InFlightSteps, waiting: WaitingQueue, *, sharing: bool) -> None:
        self.cache: Final = CacheAllocator(geometry, sharing=sharing)
        self.host = HostPool(geometry)
        self.twins: Final = PrefixWaiters()
        self._geometry = geometry
        self._lane = lane
        self._waiting = waiting
        self._replaced: dict[RequestBlocks, tuple[Request, list[int]]] = {}
        self._copies: list[Copy] = []

    def prefix(self, request: Request) -> Prefix:
        """The request's ids in pages."""
        if request.prefix is None:
            submission = request.submission
            request.prefix = Prefix(submission.salt, submission.prompt_ids, request.output, self.cache.page_tokens)
        return request.prefix

    def enter(self, request: Request, pages: int) -> None:
        """Begin a waiting request's holding with the published pages found for it, and with what the host has of it."""
        prefix, cache = self.prefix(request), self.cache
        found = cache.find(prefix)[:pages]
        holding = request.held = cache.open(prefix, found)
        request.length = len(found) * cache.page_tokens
        stored = request.stored
        if stored is not None:
            if stored.length > request.length:
                added = cache.extend(holding, stored.length)
                assert added is not None, "who comes back finds room"
                request.length = stored.length
                self.host.fetch(stored, holding.tables, len(found))
            else:
                self.host.drop(stored)
            request.stored = None
        self._settle(request, holding)

    def adopt(self, request: Request, blocks: Sequence[Sequence[int]], length: int) -> bool:
        """Begin a waiting request's holding with blocks that hold `length` positions of it; False when it can't be."""
        holding = self.cache.adopt(self.prefix(request), blocks, length)
        if holding is None:
            return False
        request.held, request.length = holding, length
        self._settle(request, holding)
        return True

    def _settle(self, request: Request, holding: RequestBlocks) -> None:
        cache = self.cache
        request.room = cache.room(holding)
        request.promised = cache.units(cache.lacks(holding, request.known))
        cache.promised += request.promised
        if cache.index is not None:
            self.twins.claim(request, holding)

    def change_policy(self) -> None:
        """Who waits for a twin's page looks again whether it may."""
        self._wake(self.twins.dismiss())

    def leave(self, request: Request) -> None:
        """End its holding; blocks that steps in flight touch are freed after them."""
        holding = request.held
        assert holding is not None
        self.cache.promised -= request.promised
        request.promised = request.room = 0
        request.held = None
        if request.in_flight:
            self._give_up(holding, request.length // self.cache.page_tokens)
            self._lane.retire(request, holding, self.cache.gain(holding))
        else:
            self._give_up(holding, len(holding.pages))
            self.cache.release(holding)

    def store(self, request: Request, slot: int) -> bool:
        """Order a running request's cache to be copied to the host; False, changing nothing, when it does not fit."""
        assert request.held is not None
        request.stored = self.host.store(request.held.tables, request.length, slot)
        return request.stored is not None

    def drop(self, request: Request) -> None:
        """Forget what the host has of a request."""
        if request.stored is not None:
            self.host.drop(request.stored)
            request.stored = None

    def publish(self, holding: RequestBlocks, request: Request, end: int) -> int:
        """A step has computed positions up to `end` of a holding: what is full can be shared from now on.

        Returns how many pages had been published by another, whose blocks are used from now on.
        """
        first = len(holding.pages)
        result = self.cache.publish(holding, end)
        self._wake(self.twins.resolve(holding, first, len(holding.pages)))
        if holding.due == UNLIMITED:
            self._give_up(holding, len(holding.pages))
        if not result.spare:
            return 0
        if request.held is holding:
            self._replaced.setdefault(holding, (request, []))[1].extend(result.replaced)
        if request.in_flight:
            self._lane.spare(request.last_step, result.spare, self.cache.units(self.cache.page))
        else:
            for blocks in result.spare:
                self.cache.give_back(blocks)
        return len(result.replaced)

    def free(self, step: InFlightStep) -> list[RetiredBlocks]:
        """No step touches these any more; returns the holdings that ended with it."""
        for retired in step.retired:
            self._give_up(retired.holding, len(retired.holding.pages))
            self.cache.release(retired.holding)
        for blocks in step.spare:
            self.cache.give_back(blocks)
        ended = list(step.retired)
        step.retired.clear()
        step.spare.clear()
        return ended

    def gather(self, request: Request) -> bool:
        """Move the blocks of the only request that holds any together, so that whole chunks become free.

        False when they are together already.
        """
        holding = request.held
        assert holding is not None and not request.in_flight
        before = [list(table) for table in holding.tables]
        moved = self.cache.gather(holding)
        for group, (table, renamed) in enumerate(zip(before, moved, strict=True)):
            self._copies += [Copy(group, block, renamed[block]) for block in table if block in renamed]
            changed = [index for index, block in enumerate(table) if block in renamed]
            if changed:
                self._replaced.setdefault(holding, (request, []))[1].extend(changed)
        return any(moved)

    def orders(self) -> CacheMoves:
        """What the plan that is being sent moves; told once."""
        replaced = tuple(
            Replace(request.slot, group, index, table[index])
            for holding, (request, indices) in self._replaced.items()
            if request.held is holding
            for group, table in enumerate(holding.tables)
            for index in indices
            if index < len(table)
        )
        out, back, stash = self.host.orders()
        copies = tuple(self._copies)
        self._replaced.clear()
        self._copies.clear()
        return CacheMoves(out, copies, back, replaced, stash)

    def reopen(self) -> None:
        """A new epoch: no copy that was ordered will be heard of, so the host pool begins empty."""
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
        stored = request.stored.length if request.stored is not None else 0
        return max(stored, pages * self.cache.page_tokens)

    def found(self, request: Request) -> Sequence[Page]:
        """The published pages a waiting request may begin with; valid until the index changes."""
        return self.cache.find(self.prefix(request))

    def _give_up(self, holding: RequestBlocks, page: int) -> None:
        if holding.claimed > page:
            self._wake(self.twins.give_up(holding, page))

    def _wake(self, requests: list[Request]) -> None:
        for request in requests:
            self._waiting.wake(request)
