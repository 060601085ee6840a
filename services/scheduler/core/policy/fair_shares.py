"""Shares between classes and tenants by weight; classes of higher rank go before lower ones for capacity.

Decides whose turn it is among waiting requests, who gives way, and what is charged: each prompt position and output token
once, when planned, by price; what is discarded is paid back, what is computed again costs nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from noria.services.scheduler.core.interface.traffic_rules import AccountStanding, FairRules
from noria.services.scheduler.core.policy.service_accounts import ClassShare, ServiceAccount, ServiceAccounts
from noria.services.scheduler.core.policy.tenant_queue import TenantQueue
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice
from noria.services.scheduler.core.state.request import Billing, Request


@dataclass(slots=True, eq=False)
class FairBilling(Billing):
    """What a request was charged, and to whom."""

    # The tenant in the class that pays.
    account: ServiceAccount = field(kw_only=True)

    def may_wait_for(self, other: Billing) -> bool:
        """Whether the other is of a higher rank, or of the same class: another one's share may be far smaller."""
        if not isinstance(other, FairBilling):
            return True
        return other.rank > self.rank or other.account.share is self.account.share


class FairShares:
    """Weighted fair queueing over classes, then tenants; `service_accounts` has the counters, `fair_composer` the steps."""

    def __init__(self, rules: FairRules) -> None:
        self.accounts = ServiceAccounts(rules)
        self.order = FairOrder(self.accounts)

    def precedence(self, request: Request) -> tuple[int, ...]:
        """Orders running requests that lack blocks: higher ranks first, then the oldest."""
        return (-request.billing.rank, *request.asked.seniority)

    def spares(self, victim: Request, claimant: Request, *, top: bool, desperate: bool) -> bool:
        """Spares who has to make progress, unless for the first of all; of other classes, who may not be pushed aside."""
        if victim.billing.rank != claimant.billing.rank and not desperate and not share_of(victim).terms.preemptible:
            return True
        return self.immune(victim) and not top

    def immune(self, request: Request) -> bool:
        """Whether a request was preempted and has not made its progress since."""
        preempted_at = request.work.preempted_at
        return preempted_at >= 0 and len(request.progress.output) < preempted_at + self.rules.progress_tokens

    def firm(self, request: Request) -> bool:
        """Whether nobody may push a request aside: its class says so, or it has to make progress first."""
        return not share_of(request).terms.preemptible or self.immune(request)

    @property
    def rules(self) -> FairRules:
        """The present rules."""
        return self.accounts.rules

    def change(self, rules: FairRules) -> None:
        """Share by other rules from now on; service so far stays."""
        self.accounts.change(rules)

    def kept(self, pages: int, page_tokens: int) -> int:
        """What isolated classes reserve of a cache of so many pages."""
        reserved = sum(each.reserved_pages(pages, page_tokens) for each in self.rules.classes if each.isolated)
        return min(int(0.9 * pages), reserved)

    def cramped(self, pages: int, page_tokens: int) -> list[tuple[str, int | None]]:
        """Isolated classes that reserve less of the cache than one of their requests may need, and how much that is."""
        return [(each.name, each.request_tokens) for each in self.rules.classes if each.cramped(pages, page_tokens)]

    def adopt(self, request: Request) -> None:
        """Open an account for a request, in its class; what was computed before is not charged."""
        self.order.open(request)

    def carried(self, request: Request) -> None:
        """Count what a request that was submitted again was charged in an earlier life; it is not charged again."""
        service = request.asked.submission.service
        if service > 0:
            account_of(request).charge(service)

    def taken_over(self, request: Request) -> None:
        """Charge what an earlier scheduler had computed beyond what admission knew of, as if it were planned now."""
        prices, billing = self.rules.prices, request.billing
        prompt, output = min(request.work.length, request.asked.prompt_tokens), len(request.progress.output)
        amount = max(0, prompt - billing.paid_prompt) * prices.prompt
        amount += max(0, output - billing.paid_output) * prices.output
        billing.paid_prompt, billing.paid_output = max(prompt, billing.paid_prompt), max(output, billing.paid_output)
        if amount:
            account_of(request).charge(amount)

    def admitted(self, request: Request, start: int) -> None:
        """Charge what of a request's prompt was found in the cache: it was given a slot and goes on at `start`."""
        billing, found = request.billing, min(start, request.asked.prompt_tokens)
        if found > billing.paid_prompt:
            account_of(request).charge((found - billing.paid_prompt) * self.rules.prices.cached)
            billing.paid_prompt = found

    def computed(self, request: Request, output: int, start: int, end: int) -> None:
        """Charge a slice that was planned: positions `start` to before `end`, output position that it samples or -1."""
        prices, billing, amount = self.rules.prices, request.billing, 0.0
        paid, last = billing.paid_prompt, min(end, request.asked.prompt_tokens)
        if last > paid:
            amount = (last - max(start, paid)) * prices.prompt
            billing.paid_prompt = last
        if output >= billing.paid_output:
            amount += prices.output
            billing.paid_output = output + 1
        if amount:
            account_of(request).charge(amount)

    def decoded(self, slices: Iterable[InFlightSlice]) -> None:
        """Charge the output tokens of sequences that continue. As `computed`, for all of them in every step."""
        price = self.rules.prices.output
        for each in slices:
            billing, output = each[0].billing, each[1]
            if output >= billing.paid_output:
                billing.paid_output = output + 1
                assert type(billing) is FairBilling
                billing.account.charge(price)

    def discarded(self, request: Request, output: int, start: int, end: int) -> None:
        """Pay back a slice of an ended request that came back, or was lost."""
        prices, billing, amount = self.rules.prices, request.billing, 0.0
        first = max(start, request.work.computed, billing.prompt_before)
        if min(end, billing.paid_prompt) > first:
            amount = (min(end, billing.paid_prompt) - first) * prices.prompt
        if max(len(request.progress.output), billing.output_before) <= output < billing.paid_output:
            amount += prices.output
        if amount and isinstance(billing, FairBilling):
            billing.account.charge(-amount)

    def ended(self, request: Request) -> None:
        """Pay back output that was planned in steps that were lost, and will not be planned again."""
        billing = request.billing
        kept = max(request.work.outputs, billing.output_before)
        if isinstance(billing, FairBilling) and billing.paid_output > kept:
            billing.account.charge((kept - billing.paid_output) * self.rules.prices.output)
            billing.paid_output = kept

    def standings(self) -> list[AccountStanding]:
        """How much every account has been served."""
        return self.accounts.standings()

    def check(self, request: Request) -> None:
        """Raises AssertionError unless what was planned for a request is charged to its account, and nothing else."""
        billing, account, asked = request.billing, account_of(request), request.asked
        assert billing.rank == account.share.terms.rank
        assert self.accounts.account(asked.submission.traffic_class, asked.submission.tenant) is account
        assert billing.prompt_before <= billing.paid_prompt <= asked.prompt_tokens
        assert min(request.work.length, asked.prompt_tokens) <= billing.paid_prompt
        assert billing.output_before <= billing.paid_output and request.work.outputs <= billing.paid_output


class FairOrder:
    """Waiting requests by class, tenant, and age within a tenant."""

    def __init__(self, accounts: ServiceAccounts) -> None:
        self._accounts = accounts
        self._lines: dict[ServiceAccount, TenantQueue] = {}

    def join(self, request: Request) -> None:
        """A request begins to wait; an account that was idle is lifted."""
        if not isinstance(request.billing, FairBilling):
            self.open(request)
        self._accounts.lift(account_of(request))
        self.rejoin(request)

    def rejoin(self, request: Request) -> None:
        """A request that waited all the time has a place again: its account is not lifted."""
        account = account_of(request)
        account.share.joined(account)
        self._lines.setdefault(account, TenantQueue()).add(request)

    def leave(self, request: Request) -> None:
        """A request gives up its place in the order."""
        account = account_of(request)
        self._lines[account].remove(request)
        self._accounts.left(account)

    def first(self) -> Request | None:
        """The request whose turn were next, were all capacity free; None without any."""
        shares = [share for share in self._accounts.shares if share.waiting]
        for share in sorted(shares, key=class_turn):
            account = share.first()
            if account is not None:
                return self.first_of(account)
        return None

    def first_of(self, account: ServiceAccount) -> Request | None:
        """The request whose turn is next of one tenant in one class."""
        return self._lines[account].first()

    def placed(self, request: Request) -> None:
        """Note that a request is about to be given a slot."""
        self._lines.setdefault(account_of(request), TenantQueue()).placed(request)

    def check(self, requests: set[Request]) -> None:
        """Raises AssertionError when it does not hold exactly these requests, or counts them wrong."""
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
        submission, before = request.asked.submission, request.billing
        account = self._accounts.account(submission.traffic_class, submission.tenant)
        terms = account.share.terms
        if isinstance(before, FairBilling) and before.account is account:
            before.rank, before.isolated = terms.rank, terms.isolated
            return
        # What was computed under another policy, class or scheduler is neither charged here nor paid back.
        done = max(request.work.length, request.work.computed, before.paid_prompt)
        if submission.output_ids:
            done = request.asked.prompt_tokens
        elif submission.service > 0:
            done = max(done, int(submission.service / (self._accounts.rules.prices.prompt or 1.0)))
        prompt = min(request.asked.prompt_tokens, done)
        output = max(before.paid_output, request.work.outputs)
        request.billing = FairBilling(
            terms.rank, terms.isolated, prompt, output, prompt, output, before.rotated_ns, account=account
        )


def class_turn(share: ClassShare) -> tuple[float, int, str]:
    """Orders classes: the one that was served least by weight goes first, of equal ones that of higher rank.

    A class that asks for short steps is given its head start: it falls behind whole steps, not single tokens, and what it
    is ahead for a moment would keep a prompt waiting for one.
    """
    return share.virtual - share.head_start, -share.terms.rank, share.terms.name


def account_of(request: Request) -> ServiceAccount:
    """The account that pays for a request."""
    billing = request.billing
    assert type(billing) is FairBilling
    return billing.account


def share_of(request: Request) -> ClassShare:
    """The class that a request is of."""
    return account_of(request).share
