"""Preempts, before a step is composed, for waiting requests that have a right to a slot or to blocks.

There are three rights: to what is reserved for a class, from whoever uses it beyond its own; to slots and blocks of classes of
lower rank, for a class that has not been served more; and to the slot of a request that used up its quantum. Classes are
compared by rank, never by age, so that nobody takes back what was taken from it. Nobody is pushed aside again before it has
made its progress.
"""

from collections.abc import Iterator
from typing import Final

from noria.services.scheduler.core.policy.class_usage import SlotUsage, count_usage
from noria.services.scheduler.core.policy.fair_shares import FairShares, account_of, class_turn, share_of
from noria.services.scheduler.core.policy.service_accounts import ClassShare
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle

# Slots that are taken from lower ranks in one step, at most: their prompts would not fit into a step anyway.
_TAKEN_MAX: Final = 4


class ReservationPreemption:
    """Preempts for waiting requests of `fair`.

    owed: slots that were taken for a class and not given to it yet. blocked: the first of a class, where it lacked blocks in the
    last step that was composed.
    """

    def __init__(self, state: SchedulerState, fair: FairShares, margin: float) -> None:
        self._state = state
        self._fair = fair
        self._margin = margin
        self._lifecycle = RequestLifecycle(state)
        self.owed: dict[ClassShare, int] = {}
        self.blocked: dict[ClassShare, Request] = {}
        self._running: list[Request] | None = None

    def preempt_for_waiting(self, now_ns: int) -> SlotUsage:
        """Let requests give way; returns what each class holds after that."""
        shares = [share for share in self._fair.accounts.shares if share.waiting and not share.terms.isolated]
        self.owed = {share: count for share, count in self.owed.items() if share.waiting and count}
        self.blocked = {
            share: request for share, request in self.blocked.items() if self._first_waiting(share) is request
        }
        usage = self.count()
        self._running = None
        if not shares or not (self._state.prefilling or self._state.decoding):
            return usage
        shares.sort(key=lambda share: (-share.terms.rank, share.terms.name))
        free = usage.shared - usage.shared_used
        for share in shares:
            free = self._slots(usage, share, free, now_ns)
            self._blocks(usage, share, now_ns)
        if free <= 0 and not self.owed:
            self._rotate(usage, shares, now_ns)
        return usage

    def _slots(self, usage: SlotUsage, share: ClassShare, free: int, now_ns: int) -> int:
        """Take the slots that a class has a right to; returns how many free ones are left for others."""
        use, head = usage.uses[share], self._first_waiting(share)
        if head is None or self._state.unready(head) is not None:
            return free
        owed = self.owed.get(share, 0)
        missing = share.waiting - owed
        free -= owed
        reserved = use.reserved - use.slots - owed
        firm = self._fair.firm(head)
        for number in range(min(missing, max(reserved, 0) + _TAKEN_MAX - owed)):
            if free > 0:
                free -= 1
                continue
            within = number < reserved
            if not within and not usage.leaves(share, firm=firm):
                break
            victim = next(self._victims(usage, share, within=within, blocks=False), None)
            if victim is None:
                break
            self._preempt(usage, victim, now_ns)
            self.owed[share] = self.owed.get(share, 0) + 1
        return free

    def _blocks(self, usage: SlotUsage, share: ClassShare, now_ns: int) -> None:
        """Take blocks for the first of a class, if enough can be taken."""
        request, cache = self.blocked.get(share), self._state.cache
        if request is None or cache is None:
            return
        memory = self._state.memory
        assert memory is not None
        use, firm = usage.uses[share], self._fair.firm(request)
        within = use.pages + -(-request.known // cache.page_tokens) <= use.reserved_pages
        spared = usage.left_pages(share, firm=firm, kept=cache.reserved_pages)
        lacking = memory.lacking(request, spared, 0.0 if within else self._margin)
        victims: list[Request] = []
        for victim in self._victims(usage, share, within=within, blocks=True):
            if lacking <= 0:
                break
            assert victim.cache.blocks is not None
            lacking -= cache.gain(victim.cache.blocks) + victim.cache.promised
            victims.append(victim)
        if lacking <= 0:
            for victim in victims:
                self._preempt(usage, victim, now_ns)

    def _victims(self, usage: SlotUsage, share: ClassShare, *, within: bool, blocks: bool) -> Iterator[Request]:
        """The requests that a class may push aside, lowest rank and newest first. within: for what is reserved for it."""
        givers: dict[ClassShare, bool] = {}
        for other, use in usage.uses.items():
            beyond = use.pages > use.reserved_pages if blocks else use.slots > use.reserved
            lower = other.terms.rank < share.terms.rank and share.virtual <= other.virtual
            open_to_all = other is not share and not other.terms.isolated and other.terms.preemptible
            givers[other] = open_to_all and beyond and (within or lower) and use.firm < use.slots
        if not any(givers.values()):
            return
        if self._running is None:
            running = (*self._state.prefilling, *self._state.decoding)
            self._running = sorted(running, key=self._fair.precedence, reverse=True)
        for victim in self._running:
            if victim.slot >= 0 and givers[share_of(victim)] and not self._fair.immune(victim):
                yield victim

    def slack(self, share: ClassShare) -> float:
        """By how much higher ranks may be served more while a class waits for blocks: one step, at its weight."""
        return self._state.settings.max_batch_tokens * self._fair.rules.prices.prompt / share.weight

    def _rotate(self, usage: SlotUsage, shares: list[ClassShare], now_ns: int) -> None:
        """Let one request that has used up its quantum go behind those of its rank or a higher one that wait."""
        heads = [head for share in shares if (head := self._first_waiting(share)) is not None]
        ready = [head for head in heads if self._state.unready(head) is None]
        spent: list[tuple[int, Request]] = []
        for request in self._state.decoding:
            quantum = share_of(request).terms.quantum_tokens
            done = request.work.outputs - request.work.outputs_at_slot
            if quantum is not None and done >= quantum and any(self._before(head, request) for head in ready):
                spent.append((done, request))
        if not spent:
            return
        _, request = max(spent, key=lambda each: (each[0], each[1].asked.seniority))
        request.billing.rotated_ns = now_ns
        self._preempt(usage, request, now_ns)

    def _before(self, head: Request, request: Request) -> bool:
        """Whether a waiting request would go before a running one that had to wait again."""
        mine, other = account_of(request), account_of(head)
        if head.billing.rank < request.billing.rank:
            return False
        return other is mine or (class_turn(other.share), other.virtual) <= (class_turn(mine.share), mine.virtual)

    def _preempt(self, usage: SlotUsage, victim: Request, now_ns: int) -> None:
        assert victim.cache.blocks is not None
        pages = victim.cache.blocks.page_count
        self._lifecycle.preempt(victim, now_ns)
        usage.remove(victim, pages)

    def count(self) -> SlotUsage:
        """What each class holds now."""
        state = self._state
        return count_usage(
            self._fair, state.cache, state.slots.count, decoding=state.decoding, prefilling=state.prefilling
        )

    def _first_waiting(self, share: ClassShare) -> Request | None:
        account = share.first()
        return self._fair.order.first_of(account) if account is not None else None
