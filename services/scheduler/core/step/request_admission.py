"""Admits waiting requests into a step: new ones, those to be computed again, and those that come back from the host.

In the policy's order and all or nothing: nobody overtakes who must wait for blocks. Only who waits for the pages that a
twin is computing is passed over, for as long as the twin computes them.
"""

from collections.abc import Sequence

from noria.services.scheduler.core.cache.pages import Page
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.step_decisions import WaitReason
from noria.services.scheduler.core.step.step_builder import StepBuilder


class RequestAdmission:
    """Decides who is admitted. margin: share of the cache that arrivals leave to running requests."""

    def __init__(self, board: SchedulerState, margin: float) -> None:
        self._board = board
        self._margin = margin
        self._lookahead = board.settings.stop_lookahead

    def admit(self, draft: StepBuilder) -> None:
        """Admit in the policy's order while slots, budgets and blocks allow."""
        waiting = self._board.waiting
        while (request := waiting.first()) is not None:
            reason = self._hindrance(draft) or self.unready(request) or self.offer(draft, request)
            if reason is not None and reason is not WaitReason.TWIN:
                draft.hold_up(request, reason)
                return

    def ahead(self, request: Request) -> bool:
        """Whether its next token must wait until the detokenizer has looked at the last ones."""
        return request.has_stop and request.planned - request.seen >= self._lookahead

    def unready(self, request: Request) -> WaitReason | None:
        """What this one waits for, whatever is free."""
        if request.in_flight:
            return WaitReason.RESULT
        return WaitReason.DETOKENIZER if self.ahead(request) else None

    def offer(
        self, draft: StepBuilder, request: Request, *, most: int | None = None, spared: int = 0, within: bool = False
    ) -> WaitReason | None:
        """Admit a request that is ready into a free slot, with a chunk of at most `most` tokens, or say what it lacks.

        Who waits for a twin is passed over. spared: pages of each group that it must leave to others. within: it stays
        within what is reserved for its class, so that the margin does not concern it.
        """
        board, memory = self._board, self._board.memory
        assert memory is not None
        found = memory.found(request)
        # A suspect waits for nobody: it must be seen to compute for itself.
        if request.stored is None and not request.suspected and memory.twins.follow(request, len(found)):
            board.waiting.pass_over(request)
            draft.pass_over(request, WaitReason.TWIN)
            return WaitReason.TWIN
        if draft.slices and draft.cache_left <= memory.start(request, len(found)):
            return WaitReason.READS
        if draft.pacing is not None and not draft.pacing.tokens(memory.start(request, len(found)), new=True):
            return WaitReason.TOKENS
        lack = self._lack(memory, request, found, spared, within=within)
        if lack is not None:
            return lack
        grown = len(draft.grows)
        board.admit(request, len(found), draft.now_ns)
        draft.chunk(request, ahead=False, most=most)
        del draft.grows[grown:]  # its tables are told whole
        assert draft.entries[-1].request is request, "an admitted request has its blocks"
        draft.fill(request)
        return None

    def lacking(self, request: Request, spared: int, *, within: bool) -> int:
        """Units that a waiting request lacks beyond what is there or comes by itself."""
        board, memory = self._board, self._board.memory
        assert memory is not None
        cache = memory.cache
        needed = self._needed(memory, request, memory.found(request)) + cache.units(cache.page) * spared
        if not within:
            needed += int(self._margin * cache.size)
        return needed - (cache.available - cache.promised) - board.lane.soon_free

    def admit_only(self, draft: StepBuilder, request: Request) -> None:
        """Admit this waiting request, whatever the policy's order, if there is room for it."""
        reason = self._hindrance(draft) or self.unready(request) or self.offer(draft, request)
        if reason is not None:
            draft.hold_up(request, reason)

    def _hindrance(self, draft: StepBuilder) -> WaitReason | None:
        """What keeps everybody out."""
        if not draft.tokens_left:
            return WaitReason.TOKENS
        if not self._board.slots.free:
            return WaitReason.SLOTS
        return WaitReason.RUNNING_FIRST if draft.stalled else None

    def _needed(self, memory: CacheMemory, request: Request, found: Sequence[Page]) -> int:
        """Units for all its known tokens, with the cached pages that it takes itself."""
        cache = memory.cache
        kept = cache.index.unused(found) if cache.index is not None else 0
        needs = cache.needs([len(found)] * len(cache.allocators), request.known)
        return cache.units(needs) + kept * cache.units(cache.page)

    def _lack(
        self, memory: CacheMemory, request: Request, found: Sequence[Page], spared: int, *, within: bool
    ) -> WaitReason | None:
        """None if the blocks of all its known tokens are there, beyond those promised, and the margin is kept."""
        board, cache = self._board, memory.cache
        needs = cache.needs([len(found)] * len(cache.allocators), request.known)
        # Cached pages that it takes itself cannot be given up for it.
        kept = cache.index.unused(found) if cache.index is not None else 0
        if not cache.fits(needs, kept, spared):
            return WaitReason.RESERVED if spared and cache.fits(needs, kept) else WaitReason.BLOCKS
        page_units = cache.units(cache.page)
        needed = cache.units(needs) + (kept + spared) * page_units
        unpromised = cache.available - cache.promised
        # What is kept for an isolated class is promised to nobody else.
        if needed > (cache.available if within and request.exempt else unpromised):
            return WaitReason.BLOCKS
        if within or (not board.prefilling and not board.decoding):
            return None
        kept_free = unpromised + board.lane.soon_free - needed
        return None if kept_free >= self._margin * cache.size else WaitReason.MARGIN
