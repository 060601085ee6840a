"""How a step is composed: what the planner asks of a policy's composer."""

from typing import Protocol

from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.step.step_builder import StepBuilder


class StepComposer(Protocol):
    """Spends the budgets of a step, under one policy."""

    @property
    def patient(self) -> bool:
        """Whether a step is better composed late, for those who come meanwhile."""

    def prepare(self, now_ns: int) -> None:
        """Let requests give way for those who have a right to it, before a step is composed."""

    def tokens(self, most: int, now_ns: int) -> int:
        """How many query tokens the step may have, `most` at most."""

    def compose(self, builder: StepBuilder) -> None:
        """Spend the step's budgets on whoever may go; suspects are left out."""

    def compose_only(self, builder: StepBuilder, requests: list[Request]) -> None:
        """Spend the step's budgets on these requests alone, who are suspected."""
