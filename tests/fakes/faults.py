"""Scheduler cores with one fault each, for tests that must notice it.

`check()` says nothing in those that concern memory: the executor's map and the tokens alone must give them away.
"""

from msgspec.structs import replace

from noria.proto.execution import Geometry, StepDone, StepPlan
from noria.proto.output import TokenRun
from noria.services.scheduler.core.cache.block_allocators import SlidingAttentionAllocator
from noria.services.scheduler.core.cache.request_blocks import Page, Prefix, RequestBlocks
from noria.services.scheduler.core.interface.events import SchedulerEvent, SchedulerReply
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.request import Request


class EarlyFree(Scheduler):
    """Frees the blocks of whoever leaves at once, though steps in flight still touch them."""

    def __init__(self, settings: CoreSettings) -> None:
        super().__init__(settings)
        in_flight = self.state.in_flight

        def retire(request: Request, holding: RequestBlocks, gain: int) -> None:
            assert self.state.cache is not None
            self.state.cache.release(holding)

        in_flight.retire = retire  # type: ignore[method-assign]  # the fault is planted here


class WrongCarry(Scheduler):
    """Reads the id of every fifth decode from what the slot was filled with."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None or plan.number % 5:
            return plan
        return replace(plan, slices=tuple(replace(each, carry=False) for each in plan.slices))


class StaleTable(Scheduler):
    """Does not tell the executor of some new blocks."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        return plan and replace(plan, grow=plan.grow[1:])


class SwappedTable(Scheduler):
    """Tells a slot's new blocks to its neighbour."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None or len(plan.grow) < 2:
            return plan
        first, second, *rest = plan.grow
        swapped = (replace(first, blocks=second.blocks), replace(second, blocks=first.blocks), *rest)
        return replace(plan, grow=swapped)


class SkippedPosition(Scheduler):
    """Now and then begins a chunk one position late."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None or plan.number % 7:
            return plan
        late = (replace(each, start=each.start + (each.start > 0), carry=each.carry) for each in plan.slices)
        return replace(plan, slices=tuple(late))


class ForgottenReset(Scheduler):
    """Believes after a reset that the first position is still cached."""

    def __init__(self, settings: CoreSettings) -> None:
        super().__init__(settings)
        lifecycle = self._planner._composer._admission._lifecycle  # type: ignore[attr-defined]
        admit = lifecycle.admit

        def admit_again(request: Request, pages: int, now_ns: int) -> None:
            again = request.life.started_ns is not None
            admit(request, pages, now_ns)
            request.work.length = max(request.work.length, int(again and request.known > 1))

        lifecycle.admit = admit_again  # the fault is planted here


class LateRelease(Scheduler):
    """Forgets to name a slot's release."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        return plan and replace(plan, release=plan.release[1:])


class DiscardedToken(Scheduler):
    """Drops the tokens that steps in flight bring for a request that was reset."""

    def apply(self, event: SchedulerEvent) -> list[SchedulerReply]:
        waiting = {request.stream for request in self.state.waiting}
        replies = super().apply(event)
        if not isinstance(event.body, StepDone):
            return replies
        return [each for each in replies if not (isinstance(each, TokenRun) and each.stream in waiting)]


class _Unchecked(Scheduler):
    """A core whose memory is spoilt when an executor joins, and that does not check itself."""

    def apply(self, event: SchedulerEvent) -> list[SchedulerReply]:
        replies = super().apply(event)
        if isinstance(event.body, Geometry):
            assert self.state.memory is not None
            self.spoil(self.state.memory)
        return replies

    def check(self) -> None:
        """Says nothing."""

    def spoil(self, memory: CacheMemory) -> None:
        """Plant the fault."""


class MissedReference(_Unchecked):
    """Forgets to count a user of every third shared page."""

    def spoil(self, memory: CacheMemory) -> None:
        index = memory.cache.index
        if index is None:
            return
        use, counted = index.use, [0]

        def forgetful(pages: list[Page]) -> None:
            use(pages)
            for page in pages:
                counted[0] += 1
                if counted[0] % 3 == 0:
                    page.users -= 1
                    if not page.users:
                        index._unused[page] = None

        index.use = forgetful  # type: ignore[method-assign, assignment]  # the fault is planted here


class FreedWhileRead(_Unchecked):
    """Frees what a request held at once, though steps in flight still touch it."""

    def spoil(self, memory: CacheMemory) -> None:
        def retire(request: Request, holding: RequestBlocks, gain: int) -> None:
            memory.cache.release(holding)

        self.state.in_flight.retire = retire  # type: ignore[method-assign]  # the fault is planted here


class StaleKey(_Unchecked):
    """Still finds pages whose blocks were given up."""

    def spoil(self, memory: CacheMemory) -> None:
        index = memory.cache.index
        if index is None:
            return
        evict = index.evict

        def evicted() -> Page:
            page = evict()
            ghost = Page(page.key, page.ids, page.parent, page.blocks)
            index._pages[page.key] = ghost
            index._unused[ghost] = None
            index._unused.move_to_end(ghost, last=True)
            return page

        index.evict = evicted  # type: ignore[method-assign]  # the fault is planted here


class LooseKey(_Unchecked):
    """Names a page by its own ids, whatever went before it."""

    def spoil(self, memory: CacheMemory) -> None:
        index = memory.cache.index
        if index is None:
            return

        def get(prefix: Prefix, number: int, parent: Page | None) -> Page | None:
            ids = prefix.ids(number)
            return next((page for page in index._pages.values() if page.ids == ids), None)

        index._get = get  # type: ignore[method-assign]  # the fault is planted here


class EarlyKey(_Unchecked):
    """Publishes pages when the step that computes them is planned."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is not None and self.state.memory is not None:
            for entry in self.state.in_flight.steps[-1].entries:
                if entry.end >= entry.blocks.due and entry.request.cache.blocks is entry.blocks:
                    self.state.memory.publish(entry.blocks, entry.request, entry.end)
        return plan


class SwappedPages(_Unchecked):
    """Brings two pages back from the host in each other's place."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None or len(plan.swap_in) < 2:
            return plan
        first, second, *rest = plan.swap_in
        swapped = (replace(first, source=second.source), replace(second, source=first.source), *rest)
        return replace(plan, swap_in=swapped)


class LateSwapOut(_Unchecked):
    """Orders copies to the host one plan too late."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None:
            return None
        late = getattr(self, "late", ())
        self.late = plan.swap_out
        return replace(plan, swap_out=late)


class ShortRing(_Unchecked):
    """Gives a sliding table the same page twice, so that its ring is overwritten before it is read."""

    def spoil(self, memory: CacheMemory) -> None:
        extend = memory.cache.extend

        def short(holding: RequestBlocks, length: int, spared: int = 0) -> tuple[tuple[int, ...], ...] | None:
            added = extend(holding, length, spared)
            table = holding.tables[-1]
            if added is None or len(table) < 3 or not added[-1]:
                return added
            table[-1] = table[0]
            return (*added[:-1], (*added[-1][:-1], table[0]))

        if isinstance(memory.cache.allocators[-1], SlidingAttentionAllocator):
            memory.cache.extend = short  # type: ignore[method-assign]  # the fault is planted here


class SilentMerge(_Unchecked):
    """Does not tell the executor that a page was replaced."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        return plan and replace(plan, replace=())


FAULTS: list[type[Scheduler]] = [
    EarlyFree,
    WrongCarry,
    StaleTable,
    SwappedTable,
    SkippedPosition,
    ForgottenReset,
    LateRelease,
    DiscardedToken,
    MissedReference,
    FreedWhileRead,
    StaleKey,
    LooseKey,
    EarlyKey,
    SwappedPages,
    LateSwapOut,
    ShortRing,
    SilentMerge,
]
