"""What tells one policy from another: whose turn it is among those who wait, who gives way, and who is told what.

A policy knows requests, not the board. `fifo` and `prefill_first` are here; `fair` shares between classes and tenants.
"""

from typing import ClassVar, Protocol

from noria.services.scheduler.core.policy.ranked_heap import RankedHeap
from noria.services.scheduler.core.policy.service_accounts import AccountStanding
from noria.services.scheduler.core.state.request import Request


class WaitingOrder(Protocol):
    """The order of waiting requests; it may change while they wait."""

    def join(self, request: Request) -> None:
        """A request waits."""

    def rejoin(self, request: Request) -> None:
        """A request that waited all the time has a place again."""

    def leave(self, request: Request) -> None:
        """It does not any more."""

    def first(self) -> Request | None:
        """Whose turn is next."""

    def check(self, requests: set[Request]) -> None:
        """Raises AssertionError when it does not hold exactly these requests."""


class Policy(Protocol):
    """What a board, a planner and preemption ask of a policy.

    name: as configured. order: of waiting requests. margin: share of the blocks that arrivals leave to running requests.
    """

    name: ClassVar[str]
    margin: ClassVar[float]

    @property
    def order(self) -> WaitingOrder:
        """The order of waiting requests."""

    def precedence(self, request: Request) -> tuple[int, ...]:
        """Among running requests that lack blocks: who is served first, least first. It never changes."""

    def spares(self, victim: Request, claimant: Request, *, top: bool, desperate: bool) -> bool:
        """Whether a running request keeps its blocks though the claimant, of higher precedence, lacks some.

        top: the claimant has the highest precedence of all. desperate: nothing is in flight and nobody can go on. For
        whoever is both nobody may be spared, or nobody would ever go on.
        """

    def kept(self, pages: int, page_tokens: int) -> int:
        """How many of the cache's pages are kept for isolated classes."""

    def adopt(self, request: Request) -> None:
        """It is under this policy from now on, whatever it was under. Waiting ones join the order by themselves."""

    def standings(self) -> list[AccountStanding]:
        """Who has been served how much, for people to read."""

    def carried(self, request: Request) -> None:
        """A request that had been served by an earlier scheduler waits, and all that came with it."""

    def adopted(self, request: Request) -> None:
        """A request goes on with a cache, and output, that an earlier scheduler had computed."""

    def ended(self, request: Request) -> None:
        """A request finished or was forgotten; steps in flight may still hold slices of it."""

    def discarded(self, request: Request, output: int, start: int, end: int) -> None:
        """A slice of an ended request came back: positions `start` to before `end`, output position or -1."""


class FifoPolicy:
    """Decodes, then running prefills, then arrivals by age; the newest is preempted first."""

    name: ClassVar[str] = "fifo"
    margin: ClassVar[float] = 0.15

    def __init__(self) -> None:
        self.order = AgeOrder()

    def precedence(self, request: Request) -> tuple[int, ...]:
        """Oldest first."""
        return request.seniority

    def spares(self, victim: Request, claimant: Request, *, top: bool, desperate: bool) -> bool:
        """Nobody gives way twice without a token in between, except to the oldest."""
        del claimant, desperate
        return victim.immune and not top

    def kept(self, pages: int, page_tokens: int) -> int:
        """Nothing is kept."""
        del pages, page_tokens
        return 0

    def adopt(self, request: Request) -> None:
        """It has no account and no rank."""
        request.account, request.rank, request.exempt = None, 0, False

    def standings(self) -> list[AccountStanding]:
        """Nothing is counted."""
        return []

    def carried(self, request: Request) -> None:
        """Nothing is counted."""

    def adopted(self, request: Request) -> None:
        """Nothing is counted."""

    def ended(self, request: Request) -> None:
        """Nothing is counted."""

    def discarded(self, request: Request, output: int, start: int, end: int) -> None:
        """Nothing is counted."""


class PrefillFirstPolicy(FifoPolicy):
    """A prompt under way is finished before others continue; else like `fifo`, without its margin.

    The order is that of transformers' scheduler of this name: running prefills, decodes, arrivals.
    """

    name: ClassVar[str] = "prefill_first"
    margin: ClassVar[float] = 0.0


class AgeOrder:
    """By age; those who come back from the host go before those who must be computed."""

    def __init__(self) -> None:
        self._line = RankedHeap()

    def join(self, request: Request) -> None:
        """A request waits."""
        self._line.add(request, (request.stored is None, *request.seniority))

    def rejoin(self, request: Request) -> None:
        """A request that waited all the time has a place again."""
        self.join(request)

    def leave(self, request: Request) -> None:
        """It does not any more."""
        self._line.remove(request)

    def first(self) -> Request | None:
        """Whose turn is next."""
        return self._line.first()

    def check(self, requests: set[Request]) -> None:
        """It holds exactly these requests."""
        self._line.check(requests)
