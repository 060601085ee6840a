"""How a declaration names its flags."""

from typing import Any


def flags(*names: str) -> dict[str, Any]:
    """The `extra` of an option's `Meta`: the flags that set it, the first is canonical."""
    return {"flags": names}
