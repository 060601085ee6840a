"""Who goes first: the order of turns within a step, of waiting requests, and of victims. Policies hold no state."""

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, Protocol

from noria.services.scheduler.core.request import Request


class Turn(IntEnum):
    """A part of a step: sequences that continue, prompts under way, and waiting requests."""

    DECODES = 1
    PREFILLS = 2
    ARRIVALS = 3


class Policy(Protocol):
    """What tells one policy from another.

    turns: who may use a step's budgets first; arrivals come last, for they may not take what running requests lack.
    margin: share of the blocks that arrivals leave to running requests.
    """

    turns: ClassVar[tuple[Turn, ...]]
    margin: ClassVar[float]

    def rank(self, request: Request) -> tuple[int, ...]:
        """A waiting request's place, least first; fixed while it waits."""

    def victims(self, running: Iterable[Request]) -> list[Request]:
        """Running requests in the order in which they are preempted; the last is never preempted."""


class Fifo:
    """Decodes, then running prefills, then arrivals by age; the newest is preempted first."""

    turns: ClassVar[tuple[Turn, ...]] = (Turn.DECODES, Turn.PREFILLS, Turn.ARRIVALS)
    margin: ClassVar[float] = 0.15

    def rank(self, request: Request) -> tuple[int, ...]:
        """By age; those who come back from the host go before those who must be computed."""
        return (request.stored is None, *request.seniority)

    def victims(self, running: Iterable[Request]) -> list[Request]:
        """Newest first."""
        return sorted(running, key=lambda request: request.seniority, reverse=True)


class PrefillFirst(Fifo):
    """A prompt under way is finished before others continue; else like `fifo`, without its margin.

    The order is that of transformers' scheduler of this name: running prefills, decodes, arrivals.
    """

    turns: ClassVar[tuple[Turn, ...]] = (Turn.PREFILLS, Turn.DECODES, Turn.ARRIVALS)
    margin: ClassVar[float] = 0.0


_POLICIES: dict[str, type[Policy]] = {"fifo": Fifo, "prefill_first": PrefillFirst}


def policy_named(name: str) -> Policy:
    """Make the policy of this name. Raises ValueError naming the known ones."""
    kind = _POLICIES.get(name)
    if kind is None:
        raise ValueError(f"unknown scheduling policy {name!r}; known: {', '.join(_POLICIES)}")
    return kind()
