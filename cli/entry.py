"""Where the command begins, also in the base install, which has no command line."""

import signal
import sys
from typing import Final

_SERVER_ONLY: Final = ("click", "rich")


def main() -> int:
    """Run `noria` with the process's arguments and return its exit status: 0 well, 1 failed, 2 misused."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        # During the imports Ctrl-C just ends the process: there is nothing to clean up, and a traceback says nothing.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from noria.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in _SERVER_ONLY:
            raise
        sys.stderr.write("noria: this command needs the full install: pip install 'noria[server]'\n")
        return 2
    signal.signal(signal.SIGINT, on_interrupt)
    return run(sys.argv[1:])
