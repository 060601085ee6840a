"""How a service's process begins."""

import subprocess
import sys
from pathlib import Path

INTERRUPTED_BEFORE_IT_BEGAN = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
os.kill(os.getpid(), signal.SIGINT)
os.execv(sys.executable, [sys.executable, "-m", "noria.services.supervisor", "--config", sys.argv[1]])
"""


def test_a_ctrl_c_that_waited_for_it_ends_it_without_a_traceback(tmp_path: Path) -> None:
    config = tmp_path / "noria.toml"
    config.write_text(f"[runtime]\ndir = '{tmp_path / 'run'}'\n")
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_BEFORE_IT_BEGAN, str(config)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
