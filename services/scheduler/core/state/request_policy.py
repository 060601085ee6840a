"""What the state and the steps ask of a policy about single requests: order, give way, charge, keep.

The whole interface of a policy, with how it composes a step, is `policy.policy.SchedulingPolicy`.
"""

from typing import ClassVar, Protocol

from noria.services.scheduler.core.interface.traffic_rules import AccountStanding, FairRules
from noria.services.scheduler.core.state.request import Request


class WaitingOrder(Protocol):
    """The order of waiting requests; it may change while they wait."""

    def join(self, request: Request) -> None:
        """A request begins to wait."""

    def rejoin(self, request: Request) -> None:
        """A request that waited all the time has a place in the order again."""

    def leave(self, request: Request) -> None:
        """A request gives up its place in the order."""

    def first(self) -> Request | None:
        """The request whose turn is next; None without any."""

    def check(self, requests: set[Request]) -> None:
        """Raises AssertionError when it does not hold exactly these requests."""


class RequestPolicy(Protocol):
    """Decides the waiting order, who is preempted, what is charged, and how much of the cache is kept for isolated classes.

    name: as configured. margin: share of the blocks that arrivals leave to running requests. by_class: whether classes have
    queues of their own.
    """

    name: ClassVar[str]
    margin: ClassVar[float]
    by_class: ClassVar[bool]

    @property
    def rules(self) -> FairRules:
        """The present classes and tenants."""

    def change(self, rules: FairRules) -> None:
        """Go on by other classes and tenants."""

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

    def cramped(self, pages: int, page_tokens: int) -> list[tuple[str, int | None]]:
        """Isolated classes that reserve less of the cache than one of their requests may need, and how much that is."""

    def adopt(self, request: Request) -> None:
        """Begin to bill a request, whatever it was under before. Waiting ones join the order by themselves."""

    def carried(self, request: Request) -> None:
        """Charge what a request, and all that came with it, was served by an earlier scheduler; it waits."""

    def taken_over(self, request: Request) -> None:
        """Charge the cache, and output, that an earlier scheduler had computed and a request goes on with."""

    def ended(self, request: Request) -> None:
        """A request finished or was forgotten; steps in flight may still hold slices of it."""

    def discarded(self, request: Request, output: int, start: int, end: int) -> None:
        """Pay back a slice of an ended request: positions `start` to before `end`, output position or -1."""

    def standings(self) -> list[AccountStanding]:
        """How much everybody has been served; empty under policies that do not count."""

    def check(self, request: Request) -> None:
        """Raises AssertionError when a request's billing is wrong."""
