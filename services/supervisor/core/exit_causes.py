"""Words for people about how a process ended."""

from collections.abc import Mapping
from typing import Final

_SIGKILL: Final = 9
_SIGNAL_NAMES: Final[Mapping[int, str]] = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
_WORDS_LINES_MAX: Final = 12


def describe_exit(status: int | None, hang: str = "") -> str:
    """Describe in words how a process ended.

    status: its exit status, or minus the signal's number; None when its parent was another supervisor.
    hang: why the supervisor killed it; empty when it did not.
    """
    if hang:
        return f"{hang} and was killed"
    if status is None:
        return "is gone; how it ended only its first supervisor could have told"
    if status >= 0:
        return f"ended unexpectedly with exit status {status}"
    name = _SIGNAL_NAMES.get(-status, f"signal {-status}")
    hint = ", perhaps because memory ran out" if -status == _SIGKILL else ""
    return f"died of {name} (signal {-status}){hint}"


def quote(last_output: str) -> str:
    """The last lines of a process's output, each indented on a line of its own; empty when there is no output."""
    lines = last_output.strip().splitlines()[-_WORDS_LINES_MAX:]
    return "".join(f"\n  {line}" for line in lines)
