"""Policies by name, and how each composes a step."""

from typing import Final, Protocol

from noria.services.scheduler.core.board import Board
from noria.services.scheduler.core.draft import Draft
from noria.services.scheduler.core.policy import Fifo, Policy, PrefillFirst
from noria.services.scheduler.core.turns import DECODES_FIRST, PREFILLS_FIRST, Turns

_POLICIES: Final[dict[str, type[Policy]]] = {each.name: each for each in (Fifo, PrefillFirst)}


class Composition(Protocol):
    """How a step is composed."""

    def prepare(self, now_ns: int) -> None:
        """Before a step is composed: let requests give way for those who have a right to it."""

    def tokens(self, most: int) -> int:
        """How many query tokens the step may have, `most` at most."""

    def compose(self, draft: Draft) -> None:
        """Spend the draft's budgets."""


def policy_named(name: str) -> Policy:
    """Make the policy of this name. Raises ValueError naming the known ones."""
    kind = _POLICIES.get(name)
    if kind is None:
        raise ValueError(f"unknown scheduling policy {name!r}; known: {', '.join(_POLICIES)}")
    return kind()


def composition_for(board: Board) -> Composition:
    """How the board's policy composes steps."""
    policy = board.policy
    chosen = board.settings.safety_margin
    margin = policy.margin if chosen is None else chosen
    return Turns(board, PREFILLS_FIRST if isinstance(policy, PrefillFirst) else DECODES_FIRST, margin)
