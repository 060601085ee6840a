"""Lock files of a runtime folder: one per process, held as long as the process lives."""

import fcntl
import os
import time
from pathlib import Path
from typing import Final

import msgspec

_TRIES: Final = 10
_TRY_INTERVAL_S: Final = 0.01


class LockRecord(msgspec.Struct, frozen=True):
    """The content of a lock file: the process that holds the lock."""

    service: str
    pid: int
    incarnation: str
    http: str = ""


class LockOwner(msgspec.Struct, frozen=True):
    """The process that holds a lock: its record, and a pidfd that can be read once that very process is gone."""

    holder: LockRecord
    descriptor: int


class Lock:
    """An exclusive lock on `<folder>/<name>.lock`, released by the kernel when the process ends."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.lock"
        self._descriptor = -1

    def acquire(self, holder: LockRecord) -> LockRecord | None:
        """Take the lock and sign it; returns None, or whoever holds it already."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _take(descriptor):
            os.close(descriptor)
            return read_holder(self._path) or LockRecord("unknown", 0, "")
        self._descriptor = descriptor
        self.sign(holder)
        return None

    def sign(self, holder: LockRecord) -> None:
        """Write the holder's record into the lock file, or replace it. The lock must be held."""
        assert self._descriptor >= 0
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(holder), 0)

    def release(self) -> None:
        """Give the lock back; the file stays, empty."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1


def _take(descriptor: int) -> bool:
    # Who looks whether a lock is free holds it for some microseconds: that is no reason to refuse a start.
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_TRY_INTERVAL_S)
        else:
            return True
    return False


def read_holder(path: Path) -> LockRecord | None:
    """Who signed a lock file, or None when nobody did."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LockRecord)
    except (OSError, msgspec.DecodeError):
        return None


def living_holder(folder: Path, name: str) -> LockRecord | None:
    """Who holds a lock right now, or None when it is free."""
    path = folder / f"{name}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return read_holder(path) or LockRecord("unknown", 0, "")
    finally:
        os.close(descriptor)
    return None


def lock_owner(folder: Path, name: str) -> LockOwner | None:
    """The process that holds a lock, verified to be the one that signed it; the caller closes the descriptor.

    None when it is free, or when no such process can be seen from here. A lock is free as soon as its holder is dead, but
    what was signed stays in the file until the next holder signs, and a dead process's pid may be another's by then.
    """
    for _ in range(_TRIES):
        holder = living_holder(folder, name)
        if holder is None or holder.pid <= 0:
            return None
        try:
            descriptor = os.pidfd_open(holder.pid)
        except OSError:
            descriptor = -1
        time.sleep(_TRY_INTERVAL_S)  # for one that has just taken the lock to sign it
        if descriptor >= 0:
            if living_holder(folder, name) == holder and _is_service(holder):
                return LockOwner(holder, descriptor)
            os.close(descriptor)
    return None


def _is_service(holder: LockRecord) -> bool:
    try:
        title = Path(f"/proc/{holder.pid}/cmdline").read_bytes()
    except OSError:
        return False
    return title.partition(b"\0")[0].strip() == f"noria: {holder.service}".encode()
