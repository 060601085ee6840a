"""How a service's process begins."""

import resource
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
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


MANY_FILES = """
import resource
from noria.proto.base import Service
from noria.shared.process.service_process import main
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
main(Service.GATEWAY, lambda config: print(resource.getrlimit(resource.RLIMIT_NOFILE)[0]) or 0)
"""


def test_a_service_may_open_more_files_than_the_shell_allows_at_first() -> None:
    ended = subprocess.run([sys.executable, "-c", MANY_FILES], capture_output=True, text=True, timeout=120, check=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert int(ended.stdout) == (65_536 if most == resource.RLIM_INFINITY else min(most, 65_536))
