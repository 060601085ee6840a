"""Runs the real supervisor with `child.py` in place of each service: `python supervised.py --config FILE`."""

import functools
import sys
from pathlib import Path

from noria.proto.base import Service
from noria.services.supervisor.start_up import start
from noria.shared.process.service_process import main


def command(module: str, config_path: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("child.py")), module, "--config", str(config_path)]


if __name__ == "__main__":
    main(Service.SUPERVISOR, functools.partial(start, command=command))
