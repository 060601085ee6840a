"""The policy `fair`: classes and tenants share by weight, and classes of higher rank go before lower ones for capacity.

Decides whose turn it is among waiting requests, who gives way, and what is charged: each prompt position and output token
once, when planned, by price; what is discarded is paid back, what is computed again costs nothing.
"""

from typing import ClassVar

from noria.services.scheduler.core.interface.traffic_rules import FairRules
from noria.services.scheduler.core.policy.service_accounts import (
    AccountStanding,
    ClassShare,
    ServiceAccount,
    ServiceAccounts,
)
from noria.services.scheduler.core.policy.tenant_queue import TenantQueue
from noria.services.scheduler.core.state.request import Request


class FairPolicy:
    """Weighted fair queueing over classes, then tenants; see `accounts` for the counters and `shares` for the steps."""

    name: ClassVar[str] = "fair"
    margin: ClassVar[float] = 0.15

    def __init__(self, rules: FairRules) -> None:
        self.accounts = ServiceAccounts(rules)
        self.order = FairOrder(self.accounts)

    def precedence(self, request: Request) -> tuple[int, ...]:
        """Higher ranks first, then the oldest."""
        return (-request.rank, *request.seniority)

    def spares(self, victim: Request, claimant: Request, *, top: bool, desperate: bool) -> bool:
        """Who has to make progress, unless for the first of all; of other classes, who may not be pushed aside."""
        if victim.rank != claimant.rank and not desperate and not share_of(victim).terms.preemptible:
            return True
        return self.immune(victim) and not top

    def immune(self, request: Request) -> bool:
        """Whether it was preempted and has not made its progress since."""
        return request.preempted_at >= 0 and len(request.output) < request.preempted_at + self.rules.progress_tokens

    def firm(self, request: Request) -> bool:
        """Whether nobody may push it aside: its class says so, or it has to make progress first."""
        return not share_of(request).terms.preemptible or self.immune(request)

    @property
    def rules(self) -> FairRules:
        """The present rules."""
        return self.accounts.rules

    def kept(self, pages: int, page_tokens: int) -> int:
        """What isolated classes reserve of a cache of so many pages."""
        reserved = sum(each.reserved_pages(pages, page_tokens) for each in self.rules.classes if each.isolated)
        return min(int(0.9 * pages), reserved)

    def change(self, rules: FairRules) -> None:
        """Share by other rules from now on; service so far stays."""
        self.accounts.change(rules)

    def adopt(self, request: Request) -> None:
        """It belongs to an account and a class from now on; what was computed before is not charged."""
        self.order.open(request)

    def standings(self) -> list[AccountStanding]:
        """Every account."""
        return self.accounts.standings()

    def carried(self, request: Request) -> None:
        """It was submitted again: what it was charged for in an earlier life counts, and is not charged again."""
        submission, account = request.submission, request.account
        assert account is not None
        if submission.service > 0:
            account.charge(submission.service)

    def adopted(self, request: Request) -> None:
        """What an earlier scheduler had computed beyond what admission knew of counts as if it were planned now."""
        prices = self.rules.prices
        prompt, output = min(request.length, request.prompt_tokens), len(request.output)
        amount = max(0, prompt - request.paid_prompt) * prices.prompt
        amount += max(0, output - request.paid_output) * prices.output
        request.paid_prompt, request.paid_output = max(prompt, request.paid_prompt), max(output, request.paid_output)
        if amount:
            account_of(request).charge(amount)

    def admitted(self, request: Request, start: int) -> None:
        """It was given a slot and goes on at `start`; what of its prompt was found in the cache is charged as such."""
        found = min(start, request.prompt_tokens)
        if found > request.paid_prompt:
            account_of(request).charge((found - request.paid_prompt) * self.rules.prices.cached)
            request.paid_prompt = found

    def computed(self, request: Request, output: int, start: int, end: int) -> None:
        """A slice was planned: positions `start` to before `end`, output position that it samples or -1."""
        prices, amount = self.rules.prices, 0.0
        paid, last = request.paid_prompt, min(end, request.prompt_tokens)
        if last > paid:
            amount = (last - max(start, paid)) * prices.prompt
            request.paid_prompt = last
        if output >= request.paid_output:
            amount += prices.output
            request.paid_output = output + 1
        if amount:
            account_of(request).charge(amount)

    def discarded(self, request: Request, output: int, start: int, end: int) -> None:
        """A slice of an ended request came back, or was lost: it is paid back."""
        prices, amount = self.rules.prices, 0.0
        first = max(start, request.computed, request.prompt_before)
        if min(end, request.paid_prompt) > first:
            amount = (min(end, request.paid_prompt) - first) * prices.prompt
        if max(len(request.output), request.output_before) <= output < request.paid_output:
            amount += prices.output
        if amount and request.account is not None:
            request.account.charge(-amount)

    def ended(self, request: Request) -> None:
        """Output that was planned in steps that were lost, and will not be planned again, is paid back."""
        kept = max(request.planned, request.output_before)
        if request.account is not None and request.paid_output > kept:
            request.account.charge((kept - request.paid_output) * self.rules.prices.output)
            request.paid_output = kept


class FairOrder:
    """Waiting requests by class, tenant, and age within a tenant."""

    def __init__(self, accounts: ServiceAccounts) -> None:
        self._accounts = accounts
        self._lines: dict[ServiceAccount, TenantQueue] = {}

    def join(self, request: Request) -> None:
        """A request waits."""
        if request.account is None:
            self.open(request)
        self._accounts.lift(account_of(request))
        self.rejoin(request)

    def rejoin(self, request: Request) -> None:
        """A request that waited all the time has a place again: its account is not lifted."""
        account = account_of(request)
        account.share.joined(account)
        self._lines.setdefault(account, TenantQueue()).add(request)

    def leave(self, request: Request) -> None:
        """It does not any more."""
        account = account_of(request)
        self._lines[account].remove(request)
        self._accounts.left(account)

    def first(self) -> Request | None:
        """Whose turn is next, were all capacity free."""
        shares = [share for share in self._accounts.shares if share.waiting]
        for share in sorted(shares, key=turn):
            account = share.first()
            if account is not None:
                return self.first_of(account)
        return None

    def first_of(self, account: ServiceAccount) -> Request | None:
        """Whose turn is next of one tenant in one class."""
        return self._lines[account].first()

    def placed(self, request: Request) -> None:
        """A request is about to be given a slot."""
        self._lines.setdefault(account_of(request), TenantQueue()).placed(request)

    def check(self, requests: set[Request]) -> None:
        """It holds exactly these requests, and counts them right."""
        by_account: dict[ServiceAccount, set[Request]] = {}
        for request in requests:
            by_account.setdefault(account_of(request), set()).add(request)
        for account, line in self._lines.items():
            mine = by_account.pop(account, set())
            line.check(mine)
            assert account.waiting == len(mine)
        assert not by_account
        self._accounts.check()

    def open(self, request: Request) -> None:
        """Find a request's account by the present rules; it is not in the order now."""
        submission = request.submission
        account = self._accounts.account(submission.traffic_class, submission.tenant)
        terms = account.share.terms
        request.rank, request.exempt = terms.rank, terms.isolated
        if account is request.account:
            return
        # What was computed under another policy, class or scheduler is neither charged here nor paid back.
        request.account = account
        done = max(request.length, request.computed, request.paid_prompt)
        if submission.output_ids:
            done = request.prompt_tokens
        elif submission.service > 0:
            done = max(done, int(submission.service / (self._accounts.rules.prices.prompt or 1.0)))
        request.paid_prompt = request.prompt_before = min(request.prompt_tokens, done)
        request.paid_output = request.output_before = max(request.paid_output, request.planned)


def turn(share: ClassShare) -> tuple[float, int, str]:
    """The order of classes: the one that was served least by weight, of equal ones that of higher rank.

    A class that asks for short steps is given its head start: it falls behind whole steps, not single tokens, and what it
    is ahead for a moment would keep a prompt waiting for one.
    """
    return share.virtual - share.head_start, -share.terms.rank, share.terms.name


def account_of(request: Request) -> ServiceAccount:
    """Whose a request is."""
    assert request.account is not None
    return request.account


def share_of(request: Request) -> ClassShare:
    """The class that a request is of."""
    return account_of(request).share
