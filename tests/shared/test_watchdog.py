"""A loop that stops turning ends its process."""

import subprocess
import sys
import threading
import time

from noria.shared.process import watchdog as module
from noria.shared.process.watchdog import HUNG_EXIT_CODE, Watchdog

_HANGS = """
import sys, time
from noria.shared.process.watchdog import Watchdog
watchdog = Watchdog("tested", 0.6)
watchdog.start()
for turn in range(3):
    watchdog.turned(turn)
def stuck():
    time.sleep(60)
stuck()
"""


def test_a_process_whose_loop_hangs_says_where_and_ends_with_a_code_of_its_own() -> None:
    found = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == HUNG_EXIT_CODE
    assert "noria tested: no turn of its loop" in found.stderr
    assert "in stuck" in found.stderr


def test_a_loop_that_turns_or_is_over_is_left_alone() -> None:
    left = threading.Event()
    watchdog = Watchdog("tested", 2 * module._TICK_S, left.set)
    watchdog.start()
    end = time.monotonic() + 4 * module._TICK_S
    while time.monotonic() < end and not left.wait(0.02):
        watchdog.turned(0)
    watchdog.stop()
    assert not left.wait(4 * module._TICK_S)
