"""Whether an optional library is installed."""

import importlib.util


def installed(name: str) -> bool:
    """Whether a package can be imported; a folder of that name alone, without code, does not count."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None
