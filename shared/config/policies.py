"""The scheduling policies by name: the one list of them. The scheduler's room `core/policy` maps each to its class."""

from typing import Final, Literal, get_args

PolicyName = Literal["fifo", "prefill_first", "fair"]
POLICY_NAMES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
# What `auto` stands for without, and with, classes or tenants in the configuration.
PLAIN_POLICY: Final[PolicyName] = "fifo"
SHARING_POLICY: Final[PolicyName] = "fair"
