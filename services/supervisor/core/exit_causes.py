"""How a process's end is told to people."""

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
    """Say how a process ended.

    status: its exit status, or minus the signal's number; None of a process whose parent was another supervisor.
    hang: why it was killed, if it was.
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


def quote(words: str) -> str:
    """The last lines of what a process said, indented, on lines of their own; empty where it said nothing."""
    lines = words.strip().splitlines()[-_WORDS_LINES_MAX:]
    return "".join(f"\n  {line}" for line in lines)
