"""The policies by name."""

import pytest
from fakes.desk import Desk, submission

from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules
from noria.services.scheduler.core.policy.policies import POLICIES, policy_named
from noria.shared.config.config import Config, SchedulerSettings
from noria.shared.config.policies import POLICY_NAMES, PolicyName


def test_every_name_of_the_configuration_has_a_policy_of_that_name_and_no_other() -> None:
    assert tuple(POLICIES) == POLICY_NAMES
    assert [policy_named(name, FairRules()).name for name in POLICY_NAMES] == list(POLICY_NAMES)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown scheduling policy 'lifo'; known: fifo, prefill_first, fair"):
        policy_named("lifo", FairRules())


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_the_configuration_takes_every_policy_and_each_serves_to_the_end(name: PolicyName) -> None:
    assert Config(scheduler=SchedulerSettings(policy=name)).policy == name
    desk = Desk(CoreSettings(policy=name, max_batch_tokens=8))
    desk.submit(*(submission(number, prompt=6, output=4) for number in range(1, 5)))
    desk.run()
    assert all(len(desk.output(number)) == 4 for number in range(1, 5))
