"""The interface of a scheduling policy: order, give way, charge, keep, and compose."""

from typing import Protocol

from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.request_policy import RequestPolicy
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.step_composer import StepComposer


class Policy(RequestPolicy, Protocol):
    """All that a policy decides: about requests as in `RequestPolicy`, and how steps are composed."""

    def composer(self, state: SchedulerState, times: StepTimePredictor) -> StepComposer:
        """What composes the steps of a scheduler whose policy this is. times: what its steps take."""
