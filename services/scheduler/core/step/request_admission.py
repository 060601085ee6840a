"""Admits waiting requests into a step: new ones, those to be computed again, and those that come back from the host.

In the policy's order and all or nothing: nobody overtakes a request that must wait for blocks. Only a request that waits for
pages which another is computing is passed over, for as long as the other computes them.
"""

from collections.abc import Sequence

from noria.services.scheduler.core.cache.request_blocks import Page
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.step_decisions import WaitReason
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle
from noria.services.scheduler.core.step.step_builder import StepBuilder


class RequestAdmission:
    """Decides which waiting requests are admitted. margin: share of the cache that arrivals leave to running requests."""

    def __init__(self, state: SchedulerState, margin: float) -> None:
        self._state = state
        self._margin = margin
        self._lifecycle = RequestLifecycle(state)

    def admit(self, builder: StepBuilder) -> None:
        """Admit in the policy's order while slots, budgets and blocks allow."""
        waiting = self._state.waiting
        while (request := waiting.first()) is not None:
            reason = self._hindrance(builder) or self._state.unready(request) or self.offer(builder, request)
            if reason is not None and reason is not WaitReason.PREFIX:
                builder.block(request, reason)
                return

    def offer(
        self, builder: StepBuilder, request: Request, *, most: int | None = None, spared: int = 0, within: bool = False
    ) -> WaitReason | None:
        """Admit a request that is ready into a free slot, with a chunk of at most `most` tokens; or return what it lacks.

        A request that waits for another's prefix is passed over. spared: pages of each group that it must leave to others. within: it
        stays within what is reserved for its class, so that the margin does not concern it.
        """
        state, memory = self._state, self._state.memory
        assert memory is not None
        found = memory.found(request)
        # A suspect waits for nobody: it must be seen to compute for itself.
        if (
            request.cache.host is None
            and not request.suspicion.suspected
            and memory.waiters.wait_if_claimed(request, len(found))
        ):
            state.waiting.pass_over(request)
            builder.pass_over(request, WaitReason.PREFIX)
            return WaitReason.PREFIX
        if builder.slices and builder.budget.cache_left <= memory.start(request, len(found)):
            return WaitReason.READS
        if builder.budget.prefill_budget is not None and not builder.budget.prefill_budget.tokens(
            memory.start(request, len(found)), new=True
        ):
            return WaitReason.TOKENS
        lack = self._lack(memory, request, found, spared, within=within)
        if lack is not None:
            return lack
        grown = len(builder.grows)
        self._lifecycle.admit(request, len(found), builder.now_ns)
        builder.chunk(request, ahead=False, most=most)
        del builder.grows[grown:]  # its tables are sent whole
        assert builder.entries[-1].request is request, "an admitted request has its blocks"
        builder.fill(request)
        return None

    def admit_only(self, builder: StepBuilder, request: Request) -> None:
        """Admit this waiting request, whatever the policy's order, if there is room for it."""
        reason = self._hindrance(builder) or self._state.unready(request) or self.offer(builder, request)
        if reason is not None:
            builder.block(request, reason)

    def _hindrance(self, builder: StepBuilder) -> WaitReason | None:
        """The reason why nobody can be admitted; None without one."""
        if not builder.budget.tokens_left:
            return WaitReason.TOKENS
        if not self._state.slots.free:
            return WaitReason.SLOTS
        return WaitReason.RUNNING_FIRST if builder.stalled else None

    def _lack(
        self, memory: CacheMemory, request: Request, found: Sequence[Page], spared: int, *, within: bool
    ) -> WaitReason | None:
        """None if the blocks of all known tokens are there, beyond those promised, and the margin is kept; else what lacks."""
        state, cache = self._state, memory.cache
        needs = cache.needs([len(found)] * len(cache.allocators), request.known)
        # Cached pages that it takes itself cannot be given up for it.
        unused = cache.index.unused(found) if cache.index is not None else 0
        if not cache.fits(needs, unused, spared):
            return WaitReason.RESERVED if spared and cache.fits(needs, unused) else WaitReason.BLOCKS
        needed = cache.units(needs) + (unused + spared) * cache.units(cache.page)
        unpromised = cache.available - cache.promised
        # What is kept for an isolated class is promised to nobody else.
        if needed > (cache.available if within and request.exempt else unpromised):
            return WaitReason.BLOCKS
        if within or (not state.prefilling and not state.decoding):
            return None
        kept_free = unpromised + state.in_flight.freeing_units - needed
        return None if kept_free >= self._margin * cache.size else WaitReason.MARGIN
