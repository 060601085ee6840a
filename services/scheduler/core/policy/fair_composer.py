"""Composes steps of the policy `fair`: whoever has been served least by weight goes next, class first, then tenant.

Isolated pools go before everybody. Then each sequence that continues gets its token; then classes fill the slots that are
reserved for them; then prompts under way and waiting requests contend for what is left, none with more than half of it while
others of its rank or a higher one want some. Only when tokens do not even suffice for all sequences do these contend, too. What
nobody else can use goes to whoever can, so that no token is left while there is work for it.
"""

from collections.abc import Iterable
from typing import Final

from noria.services.scheduler.core.policy.class_usage import SlotUsage
from noria.services.scheduler.core.policy.fair_shares import FairShares, account_of, share_of
from noria.services.scheduler.core.policy.reservation_preemption import ReservationPreemption
from noria.services.scheduler.core.policy.service_accounts import ClassShare, ServiceAccount
from noria.services.scheduler.core.policy.service_order import ServiceOrder
from noria.services.scheduler.core.predict.prefill_budget import PrefillBudget, prefill_budget, step_tokens
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.request import Request, RequestStatus
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
    """Composes steps for `fair`. margin: share of the cache that arrivals leave free. times: what steps take."""

    def __init__(self, state: SchedulerState, fair: FairShares, margin: float, times: StepTimePredictor) -> None:
        self._state = state
        self._fair = fair
        self._times = times
        self._lookahead = state.settings.stop_lookahead
        self._admission = RequestAdmission(state, margin)
        self._reservations = ReservationPreemption(state, fair, margin)
        self._usage = SlotUsage()
        self._fresh = False
        self._prefill_budget: PrefillBudget | None = None
        self._seen_ns: dict[ClassShare, int] = {}

    @property
    def patient(self) -> bool:
        """Whether a class asks for short steps: it is then also served by what is decided late."""
        return self._prefill_budget is not None

    def prepare(self, now_ns: int) -> None:
        """Let requests give way for those who have a right to their slots or blocks."""
        self._usage = self._reservations.preempt_for_waiting(now_ns)
        self._fresh = True

    def tokens(self, most: int, now_ns: int) -> int:
        """As many query tokens as keep the time between tokens that running requests ask for."""
        if not self._fresh:  # somebody gave way to running requests since
            self._usage = self._reservations.count()
        self._fresh = False
        usage = self._usage
        self._prefill_budget = prefill_budget(
            self._times.with_prompts(),
            self._target_ms(now_ns),
            decodes=usage.decodes,
            cache_tokens=usage.cache_tokens,
            stretch=self._times.stretch,
        )
        return step_tokens(self._prefill_budget, decodes=usage.decodes, tokens_max=most)

    def _target_ms(self, now_ns: int) -> float | None:
        """The least time between tokens that a class asks for which has requests, or had some lately."""
        uses = self._usage.uses
        for share, use in uses.items():
            if share.terms.itl_target_ms is not None and (use.slots or share.waiting):
                self._seen_ns[share] = now_ns
        targets = [
            share.terms.itl_target_ms
            for share, seen_ns in self._seen_ns.items()
            if share.terms.itl_target_ms is not None and share in uses and now_ns - seen_ns <= _REMEMBERED_NS
        ]
        return min(targets, default=None)

    def compose(self, builder: StepBuilder) -> None:
        """Spend the step's budgets on whoever was served least; suspects are left out."""
        state, usage = self._state, self._usage
        isolated = self._isolated(builder)
        builder.set_prefill_budget(self._prefill_budget)
        builder.left_pages = max(0, builder.cache.reserved_pages - usage.isolated_pages)
        decoding = state.continuing
        if isolated:
            decoding = [request for request in decoding if request not in isolated]
        short = len(decoding) >= builder.budget.tokens_left and bool(state.prefilling or len(state.waiting))
        if not short:
            self._decode(builder, decoding)
            builder.withhold(state.prompt_tokens(len(builder.slices)))
        order = ServiceOrder(self._fair.accounts)
        order.enter([each for each in state.prefilling if each not in isolated and not each.suspicion.suspected])
        if short:
            order.enter(decoding)
        half = max(1, -(-builder.budget.tokens_left // 2))
        self._entitled(builder, order, half)
        self._contend(builder, order, half)
        order.close()
        self._explain(builder)
        self._count_prompts(builder)

    def compose_only(self, builder: StepBuilder, requests: list[Request]) -> None:
        """Spend the step's budgets on these requests alone, who are suspected."""
        builder.left_pages = max(0, builder.cache.reserved_pages - self._usage.isolated_pages)
        for request in requests:
            if request.state is RequestStatus.PREFILLING:
                self._chunk(builder, request, None)
            elif request.state is RequestStatus.DECODING:
                self._decode(builder, (request,))
            elif request.state is RequestStatus.WAITING and builder.budget.tokens_left:
                reason = self._admit(builder, request, None)
                if reason is not None:
                    builder.block(request, reason, share_of(request).terms.name)
        self._count_prompts(builder)

    def _isolated(self, builder: StepBuilder) -> dict[Request, None]:
        """Serve isolated pools first, each request with a small part of the step; returns who is running in one."""
        state, usage = self._state, self._usage
        running: dict[Request, None] = {}
        pools = [share for share, use in usage.uses.items() if share.terms.isolated and (use.slots or share.waiting)]
        if not pools:
            return running
        most = max(1, builder.budget.tokens_left // _ISOLATED_PART)
        for request in (*state.decoding, *state.prefilling):
            if share_of(request).terms.isolated and not request.suspicion.suspected:
                running[request] = None
        self._decode(builder, [request for request in running if request.state is RequestStatus.DECODING])
        for request in running:
            if request.state is RequestStatus.PREFILLING:
                self._chunk(builder, request, most)
        for share in pools:
            while builder.budget.tokens_left and state.slots.free and usage.has_slot(share):
                account = share.first()
                if account is None:
                    break
                head = self._fair.order.first_of(account)
                assert head is not None
                reason = self._admit(builder, head, most)
                if reason is None:
                    running[head] = None
                elif reason is not WaitReason.PREFIX:
                    builder.block(head, reason, share.terms.name)
                    break
        return running

    def _decode(self, builder: StepBuilder, decoding: Iterable[Request]) -> None:
        """Plan and charge one token for each sequence that continues."""
        first = len(builder.entries)
        plan_decodes(builder, decoding, self._lookahead)
        self._fair.decoded(builder.entries[first:])

    def _entitled(self, builder: StepBuilder, order: ServiceOrder, half: int) -> None:
        """Admit those who have a right to a slot that is reserved for their class, or was taken for it."""
        usage, owed = self._usage, self._reservations.owed
        shares = [share for share in usage.uses if share.waiting and not share.terms.isolated]
        for share in sorted(shares, key=lambda each: (-each.terms.rank, each.terms.name)):
            use = usage.uses[share]
            while builder.has_room and (use.slots < use.reserved or owed.get(share, 0) > 0):
                account = share.first()
                if account is None:
                    break
                if not self._arrive(builder, order, account, half):
                    break

    def _contend(self, builder: StepBuilder, order: ServiceOrder, half: int) -> None:
        """Serve prompts under way and waiting requests, the least served first; then those who were capped get what is left."""
        while builder.has_room:
            account = order.next(arrivals=bool(self._state.slots.free))
            if account is None:
                break
            request = order.take(account)
            if request is None:
                self._arrive(builder, order, account, half)
            elif request.state is RequestStatus.DECODING:
                self._decode(builder, (request,))
            else:
                self._chunk(builder, request, self._most(builder, order, request, half))
        if builder.has_room:
            unfinished = [each for each in builder.chunk_index if each.work.length < each.work.filled]
            for request in sorted(unfinished, key=order.turn):
                self._chunk(builder, request, None)

    def _most(self, builder: StepBuilder, order: ServiceOrder, request: Request, half: int) -> int | None:
        """How much of a prompt the step may hold. One that it ends is not cut: in two halves it would only end later."""
        rest = (request.known if request.state is RequestStatus.WAITING else request.work.filled) - request.work.length
        whole = rest <= builder.prompt_tokens(request.work.length)
        return half if not whole and order.others(request.billing.rank) else None

    def _arrive(self, builder: StepBuilder, order: ServiceOrder, account: ServiceAccount, half: int) -> bool:
        """Offer the first waiting request of an account a place; note who may not go either when it gets none."""
        request = self._fair.order.first_of(account)
        assert request is not None
        reason = self._admit(builder, request, self._most(builder, order, request, half))
        if reason is None or reason is WaitReason.PREFIX:
            return True
        share = account.share
        match reason:
            case WaitReason.BLOCKS | WaitReason.MARGIN | WaitReason.READS:
                # Whoever waits for blocks is passed only by higher ranks, and not for long: else small ones starve it.
                builder.block(request, reason, share.terms.name)
                if reason is not WaitReason.READS:
                    self._reservations.blocked[share] = request
                order.bar(share, self._reservations.slack(share))
            case WaitReason.SLOTS | WaitReason.RUNNING_FIRST:
                builder.block(request, reason, share.terms.name)
                order.shut(share)
            case _:
                builder.pass_over(request, reason)
                order.set_aside(account)
        return False

    def _admit(self, builder: StepBuilder, request: Request, most: int | None) -> WaitReason | None:
        """Admit a waiting request, or say what it lacks."""
        state, fair, usage, share = self._state, self._fair, self._usage, share_of(request)
        unready = self._state.unready(request)
        if unready is not None:
            return unready
        if not state.slots.free or not usage.has_slot(share):
            return WaitReason.SLOTS
        if builder.stalled and request.billing.rank <= max(each.billing.rank for each in builder.stalled):
            return WaitReason.RUNNING_FIRST
        firm = fair.firm(request)
        if not usage.leaves(share, firm=firm):
            return WaitReason.RESERVED
        use, cache = usage.uses[share], builder.cache
        alone = not state.prefilling and not state.decoding
        spared = 0 if request.exempt else usage.left_pages(share, firm=firm and not alone, kept=cache.reserved_pages)
        within = use.pages + -(-request.known // cache.page_tokens) <= use.reserved_pages
        planned = request.work.outputs
        reason = self._admission.offer(builder, request, most=most, spared=spared, within=within)
        if reason is not None:
            return reason
        chunk = builder.slices[builder.chunk_index[request]]
        fair.order.placed(request)
        fair.admitted(request, chunk.start)
        fair.computed(request, planned if chunk.sample else -1, chunk.start, request.work.length)
        usage.add(request, firm=firm)
        owed = self._reservations.owed
        if owed.get(share):
            owed[share] -= 1
        return None

    def _chunk(self, builder: StepBuilder, request: Request, most: int | None) -> None:
        """Plan and charge a part of a prompt."""
        start, planned = request.work.length, request.work.outputs
        builder.chunk(request, ahead=self._state.ahead(request), most=most)
        if request.work.length > start:
            self._fair.computed(request, planned if request.work.outputs > planned else -1, start, request.work.length)

    def _explain(self, builder: StepBuilder) -> None:
        """Say of each class that still waits, and was not looked at, why."""
        for share in self._usage.uses:
            if not share.waiting or share.terms.name in builder.record.blocked_classes:
                continue
            account = share.first()
            request = self._fair.order.first_of(account) if account is not None else None
            if request is not None:
                slots = self._state.slots.free and self._usage.has_slot(share)
                reason = (
                    WaitReason.SLOTS
                    if not slots
                    else WaitReason.TURN
                    if builder.budget.tokens_left
                    else WaitReason.TOKENS
                )
                builder.block(request, reason, share.terms.name)

    def _count_prompts(self, builder: StepBuilder) -> None:
        """Set which accounts contend for prompt tokens until the next step."""
        counts: dict[ClassShare, dict[ServiceAccount, int]] = {}
        for request in self._state.prefilling:
            if request.work.length < request.work.filled:
                account = account_of(request)
                mine = counts.setdefault(account.share, {})
                mine[account] = mine.get(account, 0) + 1
        for share in self._usage.uses:
            share.count_prompts(counts.get(share, {}))
