"""Policies by name, and how each composes a step."""

from typing import Final, Protocol

from noria.services.scheduler.core.interface.traffic_rules import FairRules
from noria.services.scheduler.core.policy.fair_composer import FairComposer
from noria.services.scheduler.core.policy.fair_policy import FairPolicy
from noria.services.scheduler.core.policy.fifo_composer import DECODES_FIRST, PREFILLS_FIRST, FifoComposer
from noria.services.scheduler.core.policy.policy import FifoPolicy, Policy, PrefillFirstPolicy
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.step_builder import StepBuilder

_KNOWN: Final = ", ".join(each.name for each in (FifoPolicy, PrefillFirstPolicy, FairPolicy))


class StepComposer(Protocol):
    """How a step is composed."""

    @property
    def patient(self) -> bool:
        """Whether a step is better composed late, for those who come meanwhile."""

    def prepare(self, now_ns: int) -> None:
        """Before a step is composed: let requests give way for those who have a right to it."""

    def tokens(self, most: int) -> int:
        """How many query tokens the step may have, `most` at most."""

    def compose(self, draft: StepBuilder) -> None:
        """Spend the draft's budgets."""

    def compose_only(self, draft: StepBuilder, requests: list[Request]) -> None:
        """Spend them on these requests alone, who are suspected; `compose` leaves suspects out."""


def policy_named(name: str, rules: FairRules) -> Policy:
    """Make the policy of this name. Raises ValueError naming the known ones."""
    match name:
        case FifoPolicy.name:
            return FifoPolicy()
        case PrefillFirstPolicy.name:
            return PrefillFirstPolicy()
        case FairPolicy.name:
            return FairPolicy(rules)
        case _:
            raise ValueError(f"unknown scheduling policy {name!r}; known: {_KNOWN}")


def composition_for(board: SchedulerState, times: StepTimePredictor) -> StepComposer:
    """How the board's policy composes steps. times: of steps."""
    policy = board.policy
    chosen = board.settings.safety_margin
    margin = policy.margin if chosen is None else chosen
    if isinstance(policy, FairPolicy):
        return FairComposer(board, policy, margin, times)
    return FifoComposer(board, PREFILLS_FIRST if isinstance(policy, PrefillFirstPolicy) else DECODES_FIRST, margin)
