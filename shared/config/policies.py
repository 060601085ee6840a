"""The names of the scheduling policies, in the order of POLICIES in services/scheduler/core/policy/policies.py."""

from typing import Final, Literal, get_args

PolicyName = Literal["fifo", "prefill_first", "fair"]
POLICY_NAMES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
# What `auto` stands for without, and with, classes or tenants in the configuration.
PLAIN_POLICY: Final[PolicyName] = "fifo"
SHARING_POLICY: Final[PolicyName] = "fair"
