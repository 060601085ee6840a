"""The processes of a runtime folder as commands see them: who is there, signalling them, waiting until they are gone."""

import os
import signal
import time
from pathlib import Path
from typing import Final

from noria.proto.base import Service
from noria.shared.errors import UserError
from noria.shared.process.locks import LockRecord, living_holder

POLL_S: Final = 0.05
_PROC: Final = Path("/proc/self")


def supervisor_of(folder: Path) -> LockRecord:
    """Who supervises a runtime folder. Raises UserError when nobody does."""
    holder = living_holder(folder, Service.SUPERVISOR.value)
    if holder is None:
        raise UserError(f"no `noria up` runs in {folder}; name its folder with --runtime-dir")
    return holder


def send(holder: LockRecord, number: signal.Signals) -> None:
    """Signal the holder of a lock, but no innocent process: a lock may be held from another container."""
    title = Path(f"/proc/{holder.pid}/cmdline")
    try:
        if holder.pid <= 0 or (_PROC.exists() and b"noria" not in title.read_bytes()):
            raise UserError(f"{holder.service} runs outside of this container; stop it where it was started")
        os.kill(holder.pid, number)
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError as error:
        raise UserError(f"{holder.service}, process {holder.pid}, belongs to another user") from error


def gone(folder: Path, holder: LockRecord, timeout_s: float) -> bool:
    """Wait until the lock is free and its process, which unloads a large library last, has left too."""
    deadline = time.monotonic() + timeout_s
    while living_holder(folder, holder.service) is not None or alive(holder.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but has not been collected by its parent does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except (FileNotFoundError, PermissionError):
        return not _PROC.exists()
