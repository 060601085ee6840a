"""Where the command begins, also in the base install, which has no command line."""

import sys
from typing import Final

_SERVER_ONLY: Final = ("click", "rich")


def main() -> int:
    """Run `noria` with the process's arguments and return its exit status: 0 well, 1 failed, 2 misused."""
    try:
        from noria.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in _SERVER_ONLY:
            raise
        sys.stderr.write("noria: this command needs the full install: pip install 'noria[server]'\n")
        return 2
    return run(sys.argv[1:])
