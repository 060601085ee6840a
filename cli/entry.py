"""The entry point of `noria`. Also runs in the base install, where it says what to install."""

import signal
import sys
from typing import Final

_SERVER_ONLY: Final = ("click", "rich")


def main() -> int:
    """Run `noria` with the process's arguments and return its exit status: 0 success, 1 failure, 2 wrong use."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        # During the imports Ctrl-C just ends the process: there is nothing to clean up, and a traceback would not help.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from noria.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in _SERVER_ONLY:
            raise
        sys.stderr.write(
            "noria: this command needs the full install: pip install '.[server]' in noria's source folder\n"
        )
        return 2
    signal.signal(signal.SIGINT, on_interrupt)
    return run(sys.argv[1:])
