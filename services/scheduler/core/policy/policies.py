"""The policies by name. The names stand in `noria.shared.config.policies`; a test holds the two equal.

A new policy is a class of the interface in `policy`, an entry here, and its name there.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from noria.services.scheduler.core.interface.traffic_rules import FairRules
from noria.services.scheduler.core.policy.fair_composer import FairComposer
from noria.services.scheduler.core.policy.fair_shares import FairShares
from noria.services.scheduler.core.policy.fifo_policy import FifoPolicy, PrefillFirstPolicy
from noria.services.scheduler.core.policy.policy import SchedulingPolicy
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.scheduler_state import SchedulerState


class FairPolicy(FairShares):
    """Classes and tenants share by weight, slots and cache can be reserved, and higher ranks go first."""

    name: ClassVar[str] = "fair"
    margin: ClassVar[float] = 0.15
    by_class: ClassVar[bool] = True

    def composer(self, state: SchedulerState, times: StepTimePredictor) -> FairComposer:
        """Steps in which whoever was served least goes next."""
        margin = state.settings.safety_margin
        return FairComposer(state, self, self.margin if margin is None else margin, times)


POLICIES: Final[Mapping[str, Callable[[FairRules], SchedulingPolicy]]] = {
    each.name: each for each in (FifoPolicy, PrefillFirstPolicy, FairPolicy)
}


def policy_named(name: str, rules: FairRules) -> SchedulingPolicy:
    """Make the policy of this name. Raises ValueError naming the known ones."""
    if name not in POLICIES:
        raise ValueError(f"unknown scheduling policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name](rules)
