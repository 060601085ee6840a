"""Classes and tenants: the rules by which slots, cache and tokens are shared."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

STANDARD: Final = "standard"
# The longest prompt that the built-in class for people takes.
HEAD_START: Final = 4096.0
# Of the cache, what one request of an isolated class may take from everybody else.
_WHOLE_PART_MAX: Final = 0.25


@dataclass(frozen=True, slots=True)
class TrafficClass:
    """One class of requests, as configured; the names stand in event logs."""

    name: str
    # It may push aside classes of lower rank, unless they are not preemptible.
    rank: int = 1
    # Its share of service.
    weight: float = 1.0
    # What it gets back within one preemption: slots, and a share of the cache.
    reserved_slots: int = 0
    reserved_cache: float = 0.0
    # Whether higher ranks may push its requests aside.
    preemptible: bool = True
    # Whether what it reserves is nobody else's, even unused, and it has no other slots.
    isolated: bool = False
    # The most that one request may have, prompt and output together; None without a limit.
    request_tokens: int | None = None
    # Output after which a request lets others go first that wait for a slot; None for never.
    quantum_tokens: int | None = None
    # Time between tokens that steps are sized to keep; None for no such time.
    itl_target_ms: float | None = None
    # Service that a class with such a target may have had more than its share, and still go first.
    head_start: float = HEAD_START
    # Bounds of its part of the queue; None for those of the whole.
    queue_requests_max: int | None = None
    queue_tokens_max: int | None = None

    def reserved_pages(self, pages: int, page_tokens: int) -> int:
        """How many pages of a cache of so many the class reserves; if isolated at least one request's, where that is a small part."""
        share = int(self.reserved_cache * pages)
        if not self.isolated or self.request_tokens is None:
            return share
        whole = -(-self.request_tokens // page_tokens)
        return max(share, whole) if whole <= _WHOLE_PART_MAX * pages else share

    def cramped(self, pages: int, page_tokens: int) -> bool:
        """Whether the class is isolated, and its largest request may not find room in what it reserves."""
        reserved = self.reserved_pages(pages, page_tokens) * page_tokens
        return self.isolated and (self.request_tokens is None or reserved < self.request_tokens)


@dataclass(frozen=True, slots=True)
class ServicePrices:
    """What a token costs its tenant: computed for a prompt, found in the cache, generated."""

    prompt: float = 1.0
    cached: float = 0.1
    output: float = 2.0


@dataclass(frozen=True, slots=True)
class FairRules:
    """All classes and the tenants' weights (1 where absent).

    progress_tokens: output that a preempted request makes before it may be preempted again.
    """

    classes: tuple[TrafficClass, ...] = (TrafficClass(STANDARD),)
    tenants: dict[str, float] = field(default_factory=dict)
    prices: ServicePrices = ServicePrices()
    progress_tokens: int = 16

    def class_named(self, name: str) -> TrafficClass:
        """The class of this name; the default one where there is none."""
        known = {each.name: each for each in self.classes}
        if name in known:
            return known[name]
        if STANDARD in known:
            return known[STANDARD]
        return next((each for each in self.classes if not each.isolated), TrafficClass(STANDARD))


class AccountStanding(NamedTuple):
    """How much one tenant of one class was served, for people to read."""

    traffic_class: str
    tenant: str
    # Service by price since the scheduler's start.
    charged: float
    # Service by price and weight, with lifts: the least goes first.
    virtual: float
    # Waiting requests.
    waiting: int
