"""What each class holds at one moment, and what it may take. Costs as much as there are running requests.

Slots reserved for a class stand free or hold requests that can be pushed aside, so that one preemption brings each back.
Requests that can't be pushed aside, because their class says so or because they have to make progress first, are firm, and stay
out of what others have reserved.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.policy.fair_shares import FairBilling, FairShares, share_of
from noria.services.scheduler.core.policy.service_accounts import ClassShare
from noria.services.scheduler.core.state.request import Request


@dataclass(slots=True)
class ClassUsage:
    """Slots and pages of one class.

    reserved, reserved_pages: as far as there are that many. firm: those of its slots that it can't be made to give.
    """

    reserved: int = 0
    reserved_pages: int = 0
    slots: int = 0
    firm: int = 0
    pages: int = 0


@dataclass(slots=True, eq=False)
class SlotUsage:
    """Slots and pages of all classes. shared: slots that are in no isolated pool; shared_used: how many of them are taken."""

    uses: dict[ClassShare, ClassUsage] = field(default_factory=dict)
    shared: int = 0
    shared_used: int = 0
    decodes: int = 0
    cache_tokens: int = 0

    def has_slot(self, share: ClassShare) -> bool:
        """Whether a slot is free for a class, as far as isolated pools go."""
        if share.terms.isolated:
            use = self.uses[share]
            return use.slots < use.reserved
        return self.shared_used < self.shared

    def leaves(self, share: ClassShare, *, firm: bool) -> bool:
        """Whether one more of a class leaves to others the slots that are reserved for them."""
        if not firm or share.terms.isolated:
            return True
        total = 0
        for each, use in self.uses.items():
            if not each.terms.isolated:
                total += max(use.reserved, use.firm + (each is share))
        return total <= self.shared

    def left_pages(self, share: ClassShare, *, firm: bool, kept: int) -> int:
        """Pages that one more of a class must leave to others: those of isolated pools, and what is reserved if firm."""
        if share.terms.isolated:
            return 0
        pages = max(0, kept - self.isolated_pages)
        if firm:
            for each, use in self.uses.items():
                if each is not share and not each.terms.isolated:
                    pages += max(0, use.reserved_pages - use.pages)
        return pages

    @property
    def isolated_pages(self) -> int:
        """Pages that isolated classes hold."""
        return sum(use.pages for share, use in self.uses.items() if share.terms.isolated)

    def add(self, request: Request, *, firm: bool) -> None:
        """Count a request that was given a slot."""
        assert request.cache.blocks is not None
        share = share_of(request)
        use = self.uses[share]
        use.slots += 1
        use.firm += firm
        use.pages += request.cache.blocks.page_count
        self.shared_used += not share.terms.isolated

    def count(self, requests: Collection[Request], fair: FairShares) -> None:
        """Count requests that hold slots. As `add`, for all of them in every step."""
        uses, progress = self.uses, fair.rules.progress_tokens
        for request in requests:
            billing, blocks, at = request.billing, request.cache.blocks, request.work.preempted_at
            assert type(billing) is FairBilling and blocks is not None
            use = uses[billing.account.share]
            use.slots += 1
            tables = blocks.tables
            use.pages += len(tables[0]) if len(tables) == 1 else blocks.page_count
            if at >= 0 and len(request.progress.output) < at + progress:
                use.firm += 1

    def remove(self, request: Request, pages: int) -> None:
        """Count a request out that was pushed aside."""
        share = share_of(request)
        use = self.uses[share]
        use.slots -= 1
        use.pages -= pages
        self.shared_used -= not share.terms.isolated

    def check(self) -> None:
        """Raises AssertionError when a class is in another's pool, or a reservation can't be had back.

        Holds as long as the rules don't change.
        """
        assert self.shared_used <= self.shared, "an isolated pool is used by others"
        total = 0
        for share, use in self.uses.items():
            if share.terms.isolated:
                assert use.slots <= use.reserved
            else:
                total += max(use.reserved, use.firm)
        assert total <= self.shared, "what is reserved is held by those who can't be pushed aside"


def count_usage(
    fair: FairShares,
    cache: CacheAllocator | None,
    slots: int,
    *,
    decoding: Collection[Request],
    prefilling: Collection[Request],
) -> SlotUsage:
    """Count what each class holds. slots: how many there are."""
    usage = SlotUsage()
    _reserve(usage, fair, cache, slots)
    usage.count(decoding, fair)
    usage.count(prefilling, fair)
    for share, use in usage.uses.items():
        if not share.terms.preemptible:
            use.firm = use.slots
        if not share.terms.isolated:
            usage.shared_used += use.slots
    usage.decodes = len(decoding)
    usage.cache_tokens = sum([request.work.length for request in decoding])
    return usage


_LEFT_OVER: Final = 1


def _reserve(usage: SlotUsage, fair: FairShares, cache: CacheAllocator | None, slots: int) -> None:
    """Set what is reserved, higher ranks first; isolated pools and reservations each leave a slot to others."""
    shares = sorted(fair.accounts.shares, key=lambda share: (-share.terms.rank, share.terms.name))
    left = slots
    for isolated in (True, False):
        left = max(0, left - _LEFT_OVER)
        for share in shares:
            if share.terms.isolated is not isolated:
                continue
            pages = share.terms.reserved_pages(cache.pages, cache.page_tokens) if cache is not None else 0
            use = usage.uses[share] = ClassUsage(min(share.terms.reserved_slots, left), pages)
            left -= use.reserved
        if isolated:
            left += _LEFT_OVER
            usage.shared = left
