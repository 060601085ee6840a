"""Who has been served how much: a virtual token counter for each class, and in it one for each tenant.

Weighted fair queueing by virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024), in
two levels. A counter is service by price and weight; the least goes first. Who returns from idle is lifted to the least
counter of those who contend, or to that of who contended last, so that nobody saves up credit. Knows no requests.
"""

import heapq
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from noria.services.scheduler.core.interface.traffic_rules import AccountStanding, FairRules, TrafficClass


class ServiceAccount:
    """The service of one tenant in one class.

    virtual: service by price and weight, with lifts; charged: service by price so far. waiting: how many of its requests have a
    place in the order. prompts: how many of those that hold a slot have prompt left after the last step. An account contends while
    it has either.
    """

    __slots__ = ("charged", "prompts", "share", "stamp", "tenant", "virtual", "waiting", "weight")

    def __init__(self, tenant: str, share: "ClassShare", weight: float) -> None:
        self.tenant: Final = tenant
        self.share: Final = share
        self.weight = weight
        self.virtual = 0.0
        self.charged = 0.0
        self.waiting = 0
        self.prompts = 0
        self.stamp = 0

    @property
    def contends(self) -> bool:
        """Whether the tenant wants more than it has."""
        return self.waiting > 0 or self.prompts > 0

    def charge(self, amount: float) -> None:
        """Add the price of what was planned for the tenant; below zero, of what is paid back."""
        share = self.share
        self.charged += amount
        self.virtual += amount / self.weight
        share.charged += amount
        share.virtual += amount / share.weight
        if amount < 0:
            share.reconsider(self)


class ClassShare:
    """One class with its tenants. Choosing among tenants that wait costs O(log n)."""

    __slots__ = ("_heap", "_last", "accounts", "busy", "charged", "terms", "virtual", "waiting", "weight")

    def __init__(self, terms: TrafficClass) -> None:
        self.terms = terms
        self.weight = terms.weight
        self.virtual = 0.0
        self.charged = 0.0
        self.waiting = 0
        self.accounts: dict[str, ServiceAccount] = {}
        self.busy: dict[ServiceAccount, None] = {}
        self._heap: list[tuple[float, str, int, ServiceAccount]] = []
        self._last: ServiceAccount | None = None

    @property
    def head_start(self) -> float:
        """By how much more it may have been served, by weight, and still go first."""
        return self.terms.head_start / self.weight if self.terms.itl_target_ms is not None else 0.0

    @property
    def contends(self) -> bool:
        """Whether one of the class's tenants wants more than it has."""
        return self.waiting > 0 or bool(self.busy)

    def first(self) -> ServiceAccount | None:
        """The tenant with waiting requests that has been served least."""
        heap = self._heap
        while heap:
            virtual, _, stamp, account = heap[0]
            if stamp != account.stamp or not account.waiting:
                heapq.heappop(heap)
            elif virtual != account.virtual:
                # Charged since it joined: counters grow without touching the heap.
                heapq.heapreplace(heap, (account.virtual, account.tenant, stamp, account))
            else:
                return account
        return None

    def lift(self, account: ServiceAccount) -> None:
        """Raise who returns from idle to the least of those who contend."""
        if not account.contends:
            account.virtual = max(account.virtual, self._floor())

    def joined(self, account: ServiceAccount) -> None:
        """Count one more waiting request of a tenant."""
        account.waiting += 1
        self.waiting += 1
        if account.waiting == 1:
            self._preempt(account)

    def left(self, account: ServiceAccount) -> None:
        """Count one waiting request less of a tenant."""
        account.waiting -= 1
        self.waiting -= 1
        self._last = account

    def set_aside(self, account: ServiceAccount) -> None:
        """Let others of the class go first until `reconsider`."""
        account.stamp += 1

    def reconsider(self, account: ServiceAccount) -> None:
        """Let a tenant be chosen again whose counter fell, or who was set aside."""
        if account.waiting:
            self._preempt(account)

    def count_prompts(self, prompts: dict[ServiceAccount, int]) -> None:
        """Set how many prompts each tenant has under way."""
        for account in self.busy:
            account.prompts = 0
            self._last = account
        self.busy = dict.fromkeys(prompts)
        for account, count in prompts.items():
            account.prompts = count

    def _floor(self) -> float:
        least = self.first()
        candidates = [account.virtual for account in self.busy]
        if least is not None:
            candidates.append(least.virtual)
        if candidates:
            return min(candidates)
        return self._last.virtual if self._last is not None else 0.0

    def _preempt(self, account: ServiceAccount) -> None:
        account.stamp += 1
        if len(self._heap) > 64 + 2 * len(self.accounts):
            self._heap = [each for each in self._heap if each[2] == each[3].stamp and each[3].waiting]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (account.virtual, account.tenant, account.stamp, account))


class ServiceAccounts:
    """The accounts of all tenants, class by class."""

    def __init__(self, rules: FairRules) -> None:
        self.rules = rules
        self._shares: dict[str, ClassShare] = {}
        self._last: ClassShare | None = None
        self.change(rules)

    @property
    def shares(self) -> Iterable[ClassShare]:
        """Every class that is configured, or still has requests."""
        return self._shares.values()

    def change(self, rules: FairRules) -> None:
        """Other weights and classes from now on; service so far stays."""
        self.rules = rules
        for terms in rules.classes:
            share = self._shares.setdefault(terms.name, ClassShare(terms))
            share.terms, share.weight = terms, terms.weight
        for name in self._shares.keys() - {terms.name for terms in rules.classes}:
            gone = self._shares[name]  # its requests go on, with nothing reserved any more
            gone.terms = replace(gone.terms, reserved_slots=0, reserved_cache=0.0, isolated=False)
        for share in self._shares.values():
            for account in share.accounts.values():
                account.weight = rules.tenants.get(account.tenant, 1.0)

    def account(self, traffic_class: str, tenant: str) -> ServiceAccount:
        """The account of a tenant in a class; begun when first asked for."""
        terms = self.rules.class_named(traffic_class)
        share = self._shares.setdefault(terms.name, ClassShare(terms))
        account = share.accounts.get(tenant)
        if account is None:
            account = share.accounts[tenant] = ServiceAccount(tenant, share, self.rules.tenants.get(tenant, 1.0))
        return account

    def lift(self, account: ServiceAccount) -> None:
        """Lift class and tenant of a request that begins to wait, each if it was idle till now."""
        share = account.share
        if not share.contends and not share.terms.isolated:
            contending = [each.virtual for each in self._shares.values() if each.contends and not each.terms.isolated]
            if contending:
                share.virtual = max(share.virtual, min(contending))
            elif self._last is not None:
                share.virtual = max(share.virtual, self._last.virtual)
        share.lift(account)

    def left(self, account: ServiceAccount) -> None:
        """Count one waiting request less of an account."""
        account.share.left(account)
        if not account.share.terms.isolated:
            self._last = account.share

    def standings(self) -> list[AccountStanding]:
        """Every account, for people to read."""
        return [
            AccountStanding(share.terms.name, account.tenant, account.charged, account.virtual, account.waiting)
            for share in self._shares.values()
            for account in share.accounts.values()
        ]

    def check(self) -> None:
        """Raises AssertionError when sums disagree, or a waiting tenant is lost."""
        for share in self._shares.values():
            accounts = share.accounts.values()
            assert share.waiting == sum(each.waiting for each in accounts)
            assert abs(share.charged - sum(each.charged for each in accounts)) <= 1e-6 * max(1.0, share.charged)
            assert all(each.charged >= -1e-6 and each.waiting >= 0 for each in accounts)
            assert (share.first() is None) <= (not share.waiting), "a waiting tenant is lost"
