"""Builds the next step: who computes how many tokens, who is admitted, and who gives way when blocks run out.

Two budgets are spent while it is built, query tokens and cached tokens read; slots bound the requests. Whoever lacks
blocks stalls, nobody is admitted past a stalled request, and once the plan is made the newest give way to it.
"""

from noria.proto.execution import Slice, StepPlan
from noria.services.scheduler.core.arrivals import Arrivals
from noria.services.scheduler.core.board import Board
from noria.services.scheduler.core.cache import Cache
from noria.services.scheduler.core.draft import Draft
from noria.services.scheduler.core.lane import Entry, Step
from noria.services.scheduler.core.memory import Memory
from noria.services.scheduler.core.policy import Turn
from noria.services.scheduler.core.preemption import Preemption

_UNLIMITED = 1 << 62


class Planner:
    """Plans over a board. `token_limit` is set below the configured budget after a step ran out of memory."""

    def __init__(self, board: Board) -> None:
        self._board = board
        settings = board.settings
        margin = board.policy.margin if settings.safety_margin is None else settings.safety_margin
        self._arrivals = Arrivals(board, margin)
        self._preemption = Preemption(board)
        self._lookahead = settings.stop_lookahead
        self.token_limit = settings.max_batch_tokens

    @property
    def tokens_max(self) -> int:
        """The query tokens that a step may have as configured and as the executor allows."""
        geometry = self._board.geometry
        configured = self._board.settings.max_batch_tokens
        return min(configured, geometry.max_batch_tokens) if geometry else configured

    def _prefill_tokens(self, *, beside: bool) -> int:
        """The prompt tokens that a step may have, beside decodes or alone: as configured, else as the executor advises."""
        configured, geometry = self._board.settings.prefill_tokens, self._board.geometry
        if configured is not None:
            return configured
        assert geometry is not None
        return (geometry.prefill_tokens_beside if beside else geometry.prefill_tokens) or _UNLIMITED

    def plan(self, now_ns: int) -> StepPlan | None:
        """Return the next step's plan, or None when no step can or need be sent now."""
        board, memory = self._board, self._board.memory
        if memory is None or len(board.lane.steps) >= board.settings.steps_in_flight:
            return None
        untold = board.slots.begin()
        draft = self._draft(now_ns, memory.cache)
        while not draft.slices and not board.lane.steps and draft.stalled:
            # Nothing in flight can free a block: somebody gives way now, unless all wait for the detokenizer.
            if not self._preemption.give_way(draft) and not self._preemption.gather(draft):
                break
            untold = board.slots.begin()
            draft = self._draft(now_ns, memory.cache)
        # An executor without work must still learn which slots are empty.
        if not draft.slices and (board.lane.steps or not untold):
            return None
        return self._send(draft, memory)

    def _draft(self, now_ns: int, cache: Cache) -> Draft:
        board = self._board
        cache_left = board.settings.max_cache_tokens or _UNLIMITED
        tokens_left = min(self.tokens_max, self.token_limit)
        draft = Draft(board.lane.number + 1, now_ns, cache, tokens_left, cache_left)
        for turn in board.policy.turns:
            match turn:
                case Turn.DECODES:
                    self._decodes(draft)
                    if turn is board.policy.turns[0]:
                        draft.withhold(self._prefill_tokens(beside=bool(draft.slices)))
                case Turn.PREFILLS:
                    for request in tuple(board.prefilling):
                        draft.chunk(request, ahead=self._arrivals.ahead(request))
                case Turn.ARRIVALS:
                    self._arrivals.admit(draft)
        return draft

    def _decodes(self, draft: Draft) -> None:
        """One token for each sequence that continues. The hot loop: everything in it is local."""
        slices, entries, number, lookahead = draft.slices, draft.entries, draft.number, self._lookahead
        tokens_left, cache_left = draft.tokens_left, draft.cache_left
        for request in self._board.decoding:
            if not tokens_left:
                break
            output = request.planned
            if request.has_stop and output - request.seen >= lookahead:
                continue
            length = request.length + 1
            if length > cache_left and slices:
                continue
            if length > request.room and not draft.make_room(request, length):
                continue
            slices.append(Slice(request.slot, length - 1, 1, True, True))
            held = request.held
            assert held is not None
            entries.append(Entry(request, output, 1, length, held))
            request.length = length
            request.planned = output = output + 1
            request.in_flight += 1
            request.last_step = number
            if output == request.limit:
                draft.drained.append(request)
            tokens_left -= 1
            cache_left -= length
        draft.tokens_left, draft.cache_left = tokens_left, cache_left

    def _send(self, draft: Draft, memory: Memory) -> StepPlan:
        board = self._board
        tokens = min(self.tokens_max, self.token_limit) - draft.tokens_left - draft.withheld
        cache_tokens = (board.settings.max_cache_tokens or _UNLIMITED) - draft.cache_left
        board.lane.send(Step(draft.number, draft.entries, tokens, cache_tokens))
        swap_out, copies, swap_in, replaced = memory.orders()
        plan = StepPlan(
            epoch=board.lane.epoch,
            number=draft.number,
            slices=tuple(draft.slices),
            fill=tuple(draft.fills),
            grow=tuple(draft.grows),
            release=board.slots.releases(),
            swap_out=swap_out,
            copies=copies,
            swap_in=swap_in,
            replace=replaced,
        )
        board.counters.recomputed_tokens += draft.recomputed
        board.counters.evictions += memory.cache.evictions()
        for request in draft.prefilled:
            board.decode(request)
        for request in draft.drained:
            board.drain(request)
        if draft.stalled:
            self._preemption.give_way(draft)
        return plan
