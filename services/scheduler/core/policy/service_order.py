"""The order in which accounts are served while one step is composed: the least served first, of those with something to compute."""

import heapq
from collections import deque
from collections.abc import Iterable

from noria.services.scheduler.core.policy.fair_shares import account_of, class_turn
from noria.services.scheduler.core.policy.service_accounts import ClassShare, ServiceAccount, ServiceAccounts
from noria.services.scheduler.core.state.request import Request


class ServiceOrder:
    """Running requests that were entered, and the waiting ones, by class and tenant.

    Charges move the turns while it goes on. Choosing costs O(classes + log tenants).
    """

    def __init__(self, accounts: ServiceAccounts) -> None:
        self._accounts = accounts
        self._running: dict[ServiceAccount, deque[Request]] = {}
        self._heaps: dict[ClassShare, list[tuple[float, str, ServiceAccount]]] = {}
        self._bars: list[tuple[int, float]] = []
        self._shut: set[ClassShare] = set()
        self._aside: list[ServiceAccount] = []
        self._ranks: dict[int, int] = {}

    def enter(self, requests: Iterable[Request]) -> None:
        """Let running requests contend, in this order within their tenants."""
        for request in requests:
            account = account_of(request)
            queue = self._running.get(account)
            if queue is None:
                queue = self._running[account] = deque()
                heapq.heappush(self._heaps.setdefault(account.share, []), (account.virtual, account.tenant, account))
            queue.append(request)
            self._ranks[request.billing.rank] = self._ranks.get(request.billing.rank, 0) + 1

    def others(self, rank: int) -> bool:
        """Whether, next to one request of this rank, others of it or of a higher one want tokens."""
        running = sum(count for each, count in self._ranks.items() if each >= rank)
        shares = self._accounts.shares
        waiting = sum(each.waiting for each in shares if each.terms.rank >= rank and not each.terms.isolated)
        return running + waiting > 1

    def next(self, *, arrivals: bool) -> ServiceAccount | None:
        """The account whose turn it is. arrivals: whether waiting requests may be placed at all."""
        best: ServiceAccount | None = None
        best_turn: tuple[float, int, str] | None = None
        for share in self._accounts.shares:
            may_arrive = arrivals and share.waiting > 0 and self._may_arrive(share)
            if not may_arrive and not self._heaps.get(share):
                continue
            its_turn = class_turn(share)
            if best_turn is not None and its_turn >= best_turn:
                continue
            account = self._least(share, arrivals=may_arrive)
            if account is not None:
                best, best_turn = account, its_turn
        return best

    def take(self, account: ServiceAccount) -> Request | None:
        """The account's next running request; None when it is a waiting one's turn."""
        queue = self._running.get(account)
        if not queue:
            return None
        request = queue.popleft()
        if not queue:
            del self._running[account]
        return request

    def bar(self, share: ClassShare, slack: float) -> None:
        """Let nobody go before the first of a class, which waits for blocks, but higher ranks by a bounded amount."""
        self._bars.append((share.terms.rank, share.virtual + slack))
        self._shut.add(share)

    def shut(self, share: ClassShare) -> None:
        """Place no more waiting requests of a class in this step."""
        self._shut.add(share)

    def set_aside(self, account: ServiceAccount) -> None:
        """Let others of the class go on: the account's first can't be placed in this step."""
        account.share.set_aside(account)
        self._aside.append(account)

    def turn(self, request: Request) -> tuple[tuple[float, int, str], float, tuple[int, int]]:
        """Orders running requests by service, for `sorted`."""
        account = account_of(request)
        return class_turn(account.share), account.virtual, request.asked.seniority

    def close(self) -> None:
        """End the step: accounts that were set aside may be chosen again."""
        for account in self._aside:
            account.share.reconsider(account)

    def _may_arrive(self, share: ClassShare) -> bool:
        if share.terms.isolated or share in self._shut:
            return False
        return all(share.terms.rank > rank and share.virtual <= most for rank, most in self._bars)

    def _least(self, share: ClassShare, *, arrivals: bool) -> ServiceAccount | None:
        heap = self._heaps.get(share, [])
        while heap:
            virtual, tenant, account = heap[0]
            if account not in self._running:
                heapq.heappop(heap)
            elif virtual != account.virtual:
                heapq.heapreplace(heap, (account.virtual, tenant, account))
            else:
                break
        running = heap[0][2] if heap else None
        waiting = share.first() if arrivals else None
        if running is None or waiting is None:
            return running or waiting
        return running if (running.virtual, running.tenant) <= (waiting.virtual, waiting.tenant) else waiting
