"""What the fake executor raises."""


class ProtocolError(AssertionError):
    """The scheduler sent something that an executor could not have computed rightly."""


def require(condition: bool, rule: str) -> None:
    """Raise ProtocolError naming the rule that is broken."""
    if not condition:
        raise ProtocolError(rule)
