"""Policies by name, and how each composes a step."""

from typing import Final, Protocol

from noria.services.scheduler.core.interface.traffic_rules import Rules
from noria.services.scheduler.core.policy.fair_composer import Shares
from noria.services.scheduler.core.policy.fair_policy import Fair
from noria.services.scheduler.core.policy.fifo_composer import DECODES_FIRST, PREFILLS_FIRST, Turns
from noria.services.scheduler.core.policy.policy import Fifo, Policy, PrefillFirst
from noria.services.scheduler.core.predict.step_times import StepTimes
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.scheduler_state import Board
from noria.services.scheduler.core.step.step_builder import Draft

_KNOWN: Final = ", ".join(each.name for each in (Fifo, PrefillFirst, Fair))


class Composition(Protocol):
    """How a step is composed."""

    @property
    def patient(self) -> bool:
        """Whether a step is better composed late, for those who come meanwhile."""

    def prepare(self, now_ns: int) -> None:
        """Before a step is composed: let requests give way for those who have a right to it."""

    def tokens(self, most: int) -> int:
        """How many query tokens the step may have, `most` at most."""

    def compose(self, draft: Draft) -> None:
        """Spend the draft's budgets."""

    def compose_only(self, draft: Draft, requests: list[Request]) -> None:
        """Spend them on these requests alone, who are suspected; `compose` leaves suspects out."""


def policy_named(name: str, rules: Rules) -> Policy:
    """Make the policy of this name. Raises ValueError naming the known ones."""
    match name:
        case Fifo.name:
            return Fifo()
        case PrefillFirst.name:
            return PrefillFirst()
        case Fair.name:
            return Fair(rules)
        case _:
            raise ValueError(f"unknown scheduling policy {name!r}; known: {_KNOWN}")


def composition_for(board: Board, times: StepTimes) -> Composition:
    """How the board's policy composes steps. times: of steps."""
    policy = board.policy
    chosen = board.settings.safety_margin
    margin = policy.margin if chosen is None else chosen
    if isinstance(policy, Fair):
        return Shares(board, policy, margin, times)
    return Turns(board, PREFILLS_FIRST if isinstance(policy, PrefillFirst) else DECODES_FIRST, margin)
