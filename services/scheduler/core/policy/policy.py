"""The interface of a scheduling policy: order, give way, charge, keep, and compose."""

from typing import Protocol

from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.request_policy import RequestPolicy
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.step_composer import StepComposer


class SchedulingPolicy(RequestPolicy, Protocol):
    """All that a policy decides: about requests as in `RequestPolicy`, and how steps are composed."""

    def composer(self, state: SchedulerState, times: StepTimePredictor) -> StepComposer:
        """Create the step composer of this policy. times: predicts what steps take."""
