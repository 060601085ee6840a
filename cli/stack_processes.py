"""Finds the processes of a runtime folder, sends them signals, and waits until they are gone."""

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


def find_supervisor(folder: Path) -> LockRecord:
    """Return the supervisor of a runtime folder. Raises UserError when none runs."""
    holder = living_holder(folder, Service.SUPERVISOR.value)
    if holder is None:
        raise UserError(f"no `noria up` runs in {folder}; name its folder with --runtime-dir")
    return holder


def send_signal(holder: LockRecord, number: signal.Signals) -> None:
    """Send a signal to the holder of a lock, if its pid is one of ours: a lock may be held from another container."""
    title = Path(f"/proc/{holder.pid}/cmdline")
    try:
        if holder.pid <= 0 or (_PROC.exists() and b"noria" not in title.read_bytes()):
            raise UserError(f"{holder.service} runs outside of this container; stop it where it was started")
        os.kill(holder.pid, number)
    except (FileNotFoundError, ProcessLookupError):
        return
    except PermissionError as error:
        raise UserError(f"{holder.service}, process {holder.pid}, belongs to another user") from error


def wait_until_gone(folder: Path, holder: LockRecord, timeout_s: float) -> bool:
    """Wait until a lock is free and its process has ended; False when that takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while living_holder(folder, holder.service) is not None or is_alive(holder.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except (FileNotFoundError, PermissionError):
        return not _PROC.exists()
