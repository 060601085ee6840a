"""Admits waiting requests into a step: new ones, those to be computed again, and those that come back from the host.

In the policy's order and all or nothing: nobody overtakes who must wait for blocks. Only who waits for the pages that a
twin is computing is passed over, for as long as the twin computes them.
"""

from collections.abc import Sequence

from noria.services.scheduler.core.board import Board
from noria.services.scheduler.core.decisions import Reason
from noria.services.scheduler.core.draft import Draft
from noria.services.scheduler.core.memory import Memory
from noria.services.scheduler.core.pages import Page
from noria.services.scheduler.core.request import Request


class Arrivals:
    """Decides who is admitted. margin: share of the cache that arrivals leave to running requests."""

    def __init__(self, board: Board, margin: float) -> None:
        self._board = board
        self._margin = margin
        self._lookahead = board.settings.stop_lookahead

    def admit(self, draft: Draft) -> None:
        """Admit while slots, budgets and blocks allow."""
        board, memory = self._board, self._board.memory
        assert memory is not None
        while (request := board.waiting.first()) is not None:
            reason = self._hindrance(draft, request)
            if reason is not None:
                draft.hold_up(request, reason)
                return
            found = memory.found(request)
            if request.stored is None and memory.twins.follow(request, len(found)):
                board.waiting.pass_over(request)
                draft.pass_over(request, Reason.TWIN)
                continue
            if draft.slices and draft.cache_left <= memory.start(request, len(found)):
                draft.hold_up(request, Reason.READS)
                return
            lack = self._lack(memory, request, found)
            if lack is not None:
                draft.hold_up(request, lack)
                return
            grown = len(draft.grows)
            board.admit(request, len(found), draft.now_ns)
            draft.chunk(request, ahead=False)
            del draft.grows[grown:]  # its tables are told whole
            assert draft.entries[-1].request is request, "an admitted request has its blocks"
            draft.fill(request)

    def ahead(self, request: Request) -> bool:
        """Whether its next token must wait until the detokenizer has looked at the last ones."""
        return request.has_stop and request.planned - request.seen >= self._lookahead

    def _hindrance(self, draft: Draft, request: Request) -> Reason | None:
        """What keeps everybody out, or this one."""
        if not draft.tokens_left:
            return Reason.TOKENS
        if not self._board.slots.free:
            return Reason.SLOTS
        if draft.stalled:
            return Reason.RUNNING_FIRST
        if request.in_flight:
            return Reason.RESULT
        return Reason.DETOKENIZER if self.ahead(request) else None

    def _lack(self, memory: Memory, request: Request, found: Sequence[Page]) -> Reason | None:
        """None if the blocks of all its known tokens are there, beyond those promised, and the margin is kept."""
        board, cache = self._board, memory.cache
        needs = cache.needs([len(found)] * len(cache.allocators), request.known)
        # Cached pages that it takes itself cannot be given up for it.
        kept = cache.index.unused(found) if cache.index is not None else 0
        if not cache.fits(needs, kept):
            return Reason.BLOCKS
        needed = cache.units(needs) + kept * cache.units(cache.page)
        unpromised = cache.available - cache.promised
        if needed > unpromised:
            return Reason.BLOCKS
        if not board.prefilling and not board.decoding:
            return None
        within = unpromised + board.lane.soon_free - needed >= self._margin * cache.size
        return None if within else Reason.MARGIN
