"""Ends a process whose loop has stopped turning, after it has written down where every thread stands.

Who starts processes again cannot see into them, and some, like compose, do not look for hung ones at all. Time is counted
in the watchdog's own ticks: a process that was stopped and goes on has missed ticks and turns alike.
"""

import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

HUNG_EXIT_CODE: Final = 70
"""How a process ends that has found itself hung."""
_TICK_S: Final = 0.5


class Watchdog:
    """A thread that ends the process when a loop stops calling `turned`. limit_s: seconds without a turn that it allows."""

    def __init__(self, name: str, limit_s: float, leave: Callable[[], None] | None = None) -> None:
        self._name = name
        self._limit_s = limit_s
        self._leave = leave or leave_hung
        self._turns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start watching; call it when the loop is about to turn."""
        self._thread.start()

    def turned(self, now_ns: int) -> None:
        """Note that the loop has made a turn."""
        del now_ns
        self._turns += 1

    def allow(self, seconds: float) -> None:
        """The loop is over and what it ran is being closed: that may take so long on top."""
        self._limit_s += seconds

    def stop(self) -> None:
        """Stop watching; call it when the loop is over."""
        self._over.set()

    def _watch(self) -> None:
        seen, still_s = -1, 0.0
        while not self._over.wait(_TICK_S):
            still_s = still_s + _TICK_S if self._turns == seen else 0.0
            seen = self._turns
            if still_s >= self._limit_s:
                sys.stderr.write(
                    f"noria {self._name}: no turn of its loop for {still_s:.0f} s; this is where it hangs\n"
                )
                self._leave()
                return


def leave_hung() -> None:
    """Write down where every thread stands, and end the process at once."""
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.flush()
    os._exit(HUNG_EXIT_CODE)
