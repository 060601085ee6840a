"""Builds the next step: who computes how many tokens, who is admitted, and who gives way when blocks run out.

Two budgets are spent while it is built, query tokens and cached tokens read; slots bound the requests. Whoever lacks
blocks stalls, nobody is admitted past a stalled request, and once the plan is made the newest give way to it.
"""

from dataclasses import dataclass, field

from noria.proto.execution import Fill, Grow, Slice, StepPlan
from noria.services.scheduler.core.board import Board
from noria.services.scheduler.core.cache import Cache
from noria.services.scheduler.core.lane import Entry, Step
from noria.services.scheduler.core.policy import Turn
from noria.services.scheduler.core.request import Request

_UNLIMITED = 1 << 62


@dataclass(slots=True, eq=False)
class _Draft:
    """A plan in the making, with what is left of its budgets. stalled: who lacks how many blocks."""

    number: int
    now_ns: int
    cache: Cache
    tokens_left: int
    cache_left: int
    slices: list[Slice] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    grows: list[Grow] = field(default_factory=list)
    prefilled: list[Request] = field(default_factory=list)
    drained: list[Request] = field(default_factory=list)
    stalled: dict[Request, int] = field(default_factory=dict)


class Planner:
    """Plans over a board. `token_limit` is set below the configured budget after a step ran out of memory."""

    def __init__(self, board: Board) -> None:
        self._board = board
        settings = board.settings
        self._margin = board.policy.margin if settings.safety_margin is None else settings.safety_margin
        self._lookahead = settings.stop_lookahead
        self.token_limit = settings.max_batch_tokens

    @property
    def tokens_max(self) -> int:
        """The query tokens that a step may have as configured and as the executor allows."""
        geometry = self._board.geometry
        configured = self._board.settings.max_batch_tokens
        return min(configured, geometry.max_batch_tokens) if geometry else configured

    def plan(self, now_ns: int) -> StepPlan | None:
        """Return the next step's plan, or None when no step can or need be sent now."""
        board = self._board
        if board.cache is None or len(board.lane.steps) >= board.settings.steps_in_flight:
            return None
        untold = board.slots.begin()
        draft = self._draft(now_ns, board.cache)
        while not draft.slices and not board.lane.steps and draft.stalled:
            # Nothing in flight can free a block: somebody gives way now, unless all wait for the detokenizer.
            if not self._preempt(draft):
                break
            untold = board.slots.begin()
            draft = self._draft(now_ns, board.cache)
        # An executor without work must still learn which slots are empty.
        if not draft.slices and (board.lane.steps or not untold):
            return None
        return self._send(draft)

    def _draft(self, now_ns: int, cache: Cache) -> _Draft:
        board = self._board
        cache_left = board.settings.max_cache_tokens or _UNLIMITED
        tokens_left = min(self.tokens_max, self.token_limit)
        draft = _Draft(board.lane.number + 1, now_ns, cache, tokens_left, cache_left)
        for turn in board.policy.turns:
            match turn:
                case Turn.DECODES:
                    self._decodes(draft)
                case Turn.PREFILLS:
                    for request in tuple(board.prefilling):
                        self._chunk(draft, request)
                case Turn.ARRIVALS:
                    self._arrivals(draft)
        return draft

    def _decodes(self, draft: _Draft) -> None:
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
            if length > request.room and not self._make_room(draft, request, length):
                continue
            slices.append(Slice(request.slot, length - 1, 1, True, True))
            entries.append(Entry(request, output, 1))
            request.length = length
            request.planned = output = output + 1
            request.in_flight += 1
            request.last_step = number
            if output == request.limit:
                draft.drained.append(request)
            tokens_left -= 1
            cache_left -= length
        draft.tokens_left, draft.cache_left = tokens_left, cache_left

    def _chunk(self, draft: _Draft, request: Request) -> None:
        """As much of a prompt, or of tokens to be recomputed, as budgets and blocks allow."""
        start = request.length
        take = min(request.filled - start, draft.tokens_left)
        if draft.slices:
            take = min(take, draft.cache_left - start)
        if start + take == request.filled and self._ahead(request):
            take -= 1
        if take <= 0:
            return
        if start + take > request.room and not self._make_room(draft, request, start + take):
            reachable = draft.cache.reachable(request.tables)
            if reachable <= start or not self._make_room(draft, request, reachable):
                return
            take = reachable - start
            draft.stalled.pop(request, None)
        sample = start + take == request.filled
        draft.slices.append(Slice(request.slot, start, take, False, sample))
        draft.entries.append(Entry(request, request.planned if sample else -1, take))
        request.length = start + take
        request.in_flight += 1
        request.last_step = draft.number
        draft.tokens_left -= take
        draft.cache_left -= start + take
        if sample:
            request.planned += 1
            draft.prefilled.append(request)
            if request.planned == request.limit:
                draft.drained.append(request)

    def _arrivals(self, draft: _Draft) -> None:
        """Admit in the policy's order while slots, budgets and blocks allow; nobody overtakes who must wait."""
        board = self._board
        while draft.tokens_left and board.slots.free and not draft.stalled:
            if draft.slices and draft.cache_left <= 0:
                return
            request = board.waiting.first()
            if request is None or request.in_flight or self._ahead(request) or not self._fits(draft.cache, request):
                return
            board.admit(request, draft.now_ns)
            self._chunk(draft, request)
            assert request.length, "an admitted request has its blocks"
            submission = request.submission
            draft.fills.append(
                Fill(
                    slot=request.slot,
                    stream=request.stream,
                    attempt=request.attempt,
                    prompt_ids=submission.prompt_ids,
                    output_ids=tuple(request.output),
                    sampling=submission.sampling,
                    end_ids=submission.end_ids,
                    blocks=tuple(map(tuple, request.tables)),
                )
            )

    def _fits(self, cache: Cache, request: Request) -> bool:
        """Whether the blocks of all its known tokens are there, beyond those promised, and the margin is kept."""
        board = self._board
        needed = cache.missing(cache.empty(), request.known)
        unpromised = cache.pool.blank - cache.promised
        if needed > unpromised:
            return False
        if not board.prefilling and not board.decoding:
            return True
        return unpromised + board.lane.soon_free - needed >= self._margin * cache.pool.size

    def _ahead(self, request: Request) -> bool:
        """Whether its next token must wait until the detokenizer has looked at the last ones."""
        return request.has_stop and request.planned - request.seen >= self._lookahead

    def _make_room(self, draft: _Draft, request: Request, length: int) -> bool:
        """Allocate for `length` positions, or note that the request stalls."""
        cache = draft.cache
        added = cache.extend(request.tables, length)
        if added is None:
            draft.stalled[request] = cache.missing(request.tables, length)
            return False
        kept = min(request.promised, sum(map(len, added)))
        request.promised -= kept
        cache.promised -= kept
        if request.length:
            draft.grows += [Grow(request.slot, group, blocks) for group, blocks in enumerate(added) if blocks]
        request.room = cache.room(request.tables)
        return True

    def _send(self, draft: _Draft) -> StepPlan:
        board = self._board
        tokens = min(self.tokens_max, self.token_limit) - draft.tokens_left
        cache_tokens = (board.settings.max_cache_tokens or _UNLIMITED) - draft.cache_left
        board.lane.send(Step(draft.number, draft.entries, tokens, cache_tokens))
        plan = StepPlan(
            epoch=board.lane.epoch,
            number=draft.number,
            slices=tuple(draft.slices),
            fill=tuple(draft.fills),
            grow=tuple(draft.grows),
            release=board.slots.releases(),
        )
        for request in draft.prefilled:
            board.decode(request)
        for request in draft.drained:
            board.drain(request)
        if draft.stalled:
            self._preempt(draft)
        return plan

    def _preempt(self, draft: _Draft) -> bool:
        """Reset the fewest, newest requests for the blocks that stalled ones lack; True when one was reset.

        Blocks that steps in flight give back are not asked for again. Nobody gives way to a newer one, and nobody twice
        without a token in between, except to the oldest of all.
        """
        board = self._board
        lacking = sum(draft.stalled.values()) - draft.cache.pool.blank - board.lane.soon_free
        victims = board.policy.victims([*board.prefilling, *board.decoding])
        first = min(draft.stalled, key=lambda request: request.seniority)
        preempted = False
        for victim in victims:
            if lacking <= 0 or victim is first:
                break
            if victim.immune and first is not victims[-1]:
                continue
            lacking -= victim.blocks + draft.stalled.get(victim, 0)
            board.reset(victim, draft.now_ns)
            preempted = True
        return preempted
