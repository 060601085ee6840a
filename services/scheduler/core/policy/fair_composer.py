"""Composes a step by shares: whoever has been served least by weight goes next, class first, then tenant.

Isolated pools go before everybody. Then each sequence that continues gets its token; then those who have a right to
reserved slots; then prompts under way and waiting requests contend for what is left, none with more than half of it
while others of its rank or a higher one want some. Only when tokens do not even suffice for all sequences do these
contend, too. What nobody else can use goes to whoever can, so that no token is left while there is work for it.
"""

from collections.abc import Iterable
from typing import Final

from noria.services.scheduler.core.policy.class_usage import SlotUsage, count_usage
from noria.services.scheduler.core.policy.fair_policy import FairPolicy, account_of, share_of
from noria.services.scheduler.core.policy.reservation_preemption import ReservationPreemption
from noria.services.scheduler.core.policy.service_accounts import ClassShare, ServiceAccount
from noria.services.scheduler.core.policy.service_order import ServiceOrder
from noria.services.scheduler.core.predict.prefill_budget import PrefillBudget, pacing, step_tokens
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.request import Request, RequestState
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.step_decisions import WaitReason
from noria.services.scheduler.core.step.decode_slices import plan_decodes
from noria.services.scheduler.core.step.request_admission import RequestAdmission
from noria.services.scheduler.core.step.step_builder import StepBuilder

# Of a step, what one request of an isolated pool may take before all others.
_ISOLATED_PART: Final = 4
# The steps stay short for so long after the last request of a class that asks for it: the next one finds a short step.
_REMEMBERED_NS: Final = 60_000_000_000


class FairComposer:
    """Composes steps for `fair`. times: of steps. margin: what arrivals leave free."""

    def __init__(self, board: SchedulerState, fair: FairPolicy, margin: float, times: StepTimePredictor) -> None:
        self._board = board
        self._fair = fair
        self._times = times
        self._lookahead = board.settings.stop_lookahead
        self._arrivals = RequestAdmission(board, margin)
        self._claims = ReservationPreemption(board, fair, self._arrivals)
        self._census = SlotUsage()
        self._fresh = False
        self._pacing: PrefillBudget | None = None
        self._seen_ns: dict[ClassShare, int] = {}

    @property
    def patient(self) -> bool:
        """While a class asks for short steps, it is also served by what is decided late."""
        return self._pacing is not None

    def prepare(self, now_ns: int) -> None:
        """Let requests give way for those who have a right to their slots or blocks."""
        self._census = self._claims.settle(now_ns)
        self._fresh = True

    def tokens(self, most: int) -> int:
        """As many as keep the time between tokens that running requests ask for."""
        if not self._fresh:  # somebody gave way to running requests since
            self._census = count_usage(self._board, self._fair)
        self._fresh = False
        census = self._census
        self._pacing = pacing(
            self._times.with_prompts(),
            self._target_ms(),
            decodes=census.decodes,
            cache_tokens=census.cache_tokens,
            stretch=self._times.stretch,
        )
        return step_tokens(self._pacing, decodes=census.decodes, tokens_max=most)

    def _target_ms(self) -> float | None:
        """The least time between tokens that a class asks for which has requests, or had some lately."""
        now_ns, uses = self._board.now_ns, self._census.uses
        for share, use in uses.items():
            if share.terms.itl_target_ms is not None and (use.slots or share.waiting):
                self._seen_ns[share] = now_ns
        targets = [
            share.terms.itl_target_ms
            for share, seen_ns in self._seen_ns.items()
            if share.terms.itl_target_ms is not None and share in uses and now_ns - seen_ns <= _REMEMBERED_NS
        ]
        return min(targets, default=None)

    def compose(self, draft: StepBuilder) -> None:
        """Spend the draft's budgets."""
        board, census = self._board, self._census
        isolated = self._isolated(draft)
        draft.pace(self._pacing)
        draft.spared = max(0, draft.cache.kept_pages - census.isolated_pages)
        decoding = board.continuing
        if isolated:
            decoding = [request for request in decoding if request not in isolated]
        short = len(decoding) >= draft.tokens_left and bool(board.prefilling or len(board.waiting))
        if not short:
            self._decode(draft, decoding)
            draft.withhold(board.prompt_tokens(len(draft.slices)))
        contest = ServiceOrder(self._fair.accounts)
        contest.enter([each for each in board.prefilling if each not in isolated and not each.suspected])
        if short:
            contest.enter(decoding)
        half = max(1, -(-draft.tokens_left // 2))
        self._entitled(draft, contest, half)
        self._contend(draft, contest, half)
        contest.close()
        self._explain(draft)
        self._count_prompts(draft)

    def compose_only(self, draft: StepBuilder, requests: list[Request]) -> None:
        """Spend them on these requests alone."""
        draft.spared = max(0, draft.cache.kept_pages - self._census.isolated_pages)
        for request in requests:
            if request.state is RequestState.PREFILLING:
                self._chunk(draft, request, None)
            elif request.state is RequestState.DECODING:
                self._decode(draft, (request,))
            elif request.state is RequestState.WAITING and draft.tokens_left:
                reason = self._admit(draft, request, None)
                if reason is not None:
                    draft.hold_up(request, reason, share_of(request).terms.name)
        self._count_prompts(draft)

    def _isolated(self, draft: StepBuilder) -> dict[Request, None]:
        """Isolated pools first, each request with a small part of the step; returns who is running in one."""
        board, census = self._board, self._census
        running: dict[Request, None] = {}
        pools = [share for share, use in census.uses.items() if share.terms.isolated and (use.slots or share.waiting)]
        if not pools:
            return running
        most = max(1, draft.tokens_left // _ISOLATED_PART)
        for request in (*board.decoding, *board.prefilling):
            if share_of(request).terms.isolated and not request.suspected:
                running[request] = None
        self._decode(draft, [request for request in running if request.state is RequestState.DECODING])
        for request in running:
            if request.state is RequestState.PREFILLING:
                self._chunk(draft, request, most)
        for share in pools:
            while draft.tokens_left and board.slots.free and census.has_slot(share):
                account = share.first()
                if account is None:
                    break
                head = self._fair.order.first_of(account)
                assert head is not None
                reason = self._admit(draft, head, most)
                if reason is None:
                    running[head] = None
                elif reason is not WaitReason.TWIN:
                    draft.hold_up(head, reason, share.terms.name)
                    break
        return running

    def _decode(self, draft: StepBuilder, decoding: Iterable[Request]) -> None:
        """One token for each sequence that continues, charged."""
        plan_decodes(draft, decoding, self._lookahead, self._fair.rules.prices.output)

    def _entitled(self, draft: StepBuilder, contest: ServiceOrder, half: int) -> None:
        """Those who have a right to a slot that is reserved for their class, or was taken for it."""
        census, owed = self._census, self._claims.owed
        shares = [share for share in census.uses if share.waiting and not share.terms.isolated]
        for share in sorted(shares, key=lambda each: (-each.terms.rank, each.terms.name)):
            use = census.uses[share]
            while draft.open and (use.slots < use.reserved or owed.get(share, 0) > 0):
                account = share.first()
                if account is None:
                    break
                if not self._arrive(draft, contest, account, half):
                    break

    def _contend(self, draft: StepBuilder, contest: ServiceOrder, half: int) -> None:
        """Prompts under way and waiting requests, the least served first; then what is left to those who were capped."""
        while draft.open:
            account = contest.next(arrivals=bool(self._board.slots.free))
            if account is None:
                break
            request = contest.take(account)
            if request is None:
                self._arrive(draft, contest, account, half)
            elif request.state is RequestState.DECODING:
                self._decode(draft, (request,))
            else:
                self._chunk(draft, request, self._most(draft, contest, request, half))
        if draft.open:
            unfinished = [each for each in draft.begun if each.length < each.filled]
            for request in sorted(unfinished, key=contest.turn):
                self._chunk(draft, request, None)

    def _most(self, draft: StepBuilder, contest: ServiceOrder, request: Request, half: int) -> int | None:
        """How much of a prompt the step may hold. One that it ends is not cut: in two halves it would only end later."""
        rest = (request.known if request.state is RequestState.WAITING else request.filled) - request.length
        whole = rest <= draft.prompt_tokens(request.length)
        return half if not whole and contest.others(request.rank) else None

    def _arrive(self, draft: StepBuilder, contest: ServiceOrder, account: ServiceAccount, half: int) -> bool:
        """Offer the first waiting request of an account a place; note who may not go either when it gets none."""
        request = self._fair.order.first_of(account)
        assert request is not None
        reason = self._admit(draft, request, self._most(draft, contest, request, half))
        if reason is None or reason is WaitReason.TWIN:
            return True
        share = account.share
        match reason:
            case WaitReason.BLOCKS | WaitReason.MARGIN | WaitReason.READS:
                # Whoever waits for blocks is passed only by higher ranks, and not for long: else small ones starve it.
                draft.hold_up(request, reason, share.terms.name)
                if reason is not WaitReason.READS:
                    self._claims.blocked[share] = request
                contest.bar(share, self._claims.slack(share))
            case WaitReason.SLOTS | WaitReason.RUNNING_FIRST:
                draft.hold_up(request, reason, share.terms.name)
                contest.shut(share)
            case _:
                draft.pass_over(request, reason)
                contest.set_aside(account)
        return False

    def _admit(self, draft: StepBuilder, request: Request, most: int | None) -> WaitReason | None:
        """Admit a waiting request, or say what it lacks."""
        board, fair, census, share = self._board, self._fair, self._census, share_of(request)
        unready = self._arrivals.unready(request)
        if unready is not None:
            return unready
        if not board.slots.free or not census.has_slot(share):
            return WaitReason.SLOTS
        if draft.stalled and request.rank <= max(each.rank for each in draft.stalled):
            return WaitReason.RUNNING_FIRST
        firm = fair.firm(request)
        if not census.leaves(share, firm=firm):
            return WaitReason.RESERVED
        use, cache = census.uses[share], draft.cache
        alone = not board.prefilling and not board.decoding
        spared = 0 if request.exempt else census.spared(share, firm=firm and not alone, kept=cache.kept_pages)
        within = use.pages + -(-request.known // cache.page_tokens) <= use.reserved_pages
        planned = request.planned
        reason = self._arrivals.offer(draft, request, most=most, spared=spared, within=within)
        if reason is not None:
            return reason
        chunk = draft.slices[draft.begun[request]]
        fair.order.placed(request)
        fair.admitted(request, chunk.start)
        fair.computed(request, planned if chunk.sample else -1, chunk.start, request.length)
        census.add(request, firm=firm)
        owed = self._claims.owed
        if owed.get(share):
            owed[share] -= 1
        return None

    def _chunk(self, draft: StepBuilder, request: Request, most: int | None) -> None:
        """A part of a prompt, charged."""
        start, planned = request.length, request.planned
        draft.chunk(request, ahead=self._arrivals.ahead(request), most=most)
        if request.length > start:
            self._fair.computed(request, planned if request.planned > planned else -1, start, request.length)

    def _explain(self, draft: StepBuilder) -> None:
        """Say of each class that still waits, and was not looked at, why."""
        for share in self._census.uses:
            if not share.waiting or share.terms.name in draft.gates:
                continue
            account = share.first()
            request = self._fair.order.first_of(account) if account is not None else None
            if request is not None:
                slots = self._board.slots.free and self._census.has_slot(share)
                reason = WaitReason.SLOTS if not slots else WaitReason.TURN if draft.tokens_left else WaitReason.TOKENS
                draft.hold_up(request, reason, share.terms.name)

    def _count_prompts(self, draft: StepBuilder) -> None:
        """Who contends for prompt tokens until the next step."""
        counts: dict[ClassShare, dict[ServiceAccount, int]] = {}
        for request in self._board.prefilling:
            if request.length < request.filled:
                account = account_of(request)
                mine = counts.setdefault(account.share, {})
                mine[account] = mine.get(account, 0) + 1
        for share in self._census.uses:
            share.count_prompts(counts.get(share, {}))
