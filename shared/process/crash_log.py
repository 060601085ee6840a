"""The crash log of a service: its last traceback, kept in the runtime folder so that the supervisor can quote it.

Standard error is shared by all processes of a stack, and what one said last is soon far above what the others say.
"""

import contextlib
import faulthandler
import sys
import traceback
from pathlib import Path
from types import TracebackType


def crash_log_path(folder: Path, service: str) -> Path:
    """The crash log file of a service in a runtime folder."""
    return folder / f"{service}.last"


def log_crashes(folder: Path, service: str) -> None:
    """Write unhandled exceptions and fatal signals of this process into its crash log, too, from now on."""
    try:
        # Open as long as the process lives: a process that has run out of memory or files can open nothing.
        file = crash_log_path(folder, service).open("ab", buffering=0)
    except OSError:
        return
    faulthandler.enable(file)
    shown = sys.excepthook

    def write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            file.write("".join(traceback.format_exception(kind, error, trace)).encode(errors="replace"))
        shown(kind, error, trace)

    sys.excepthook = write
