"""A small file beside the database that says how far the database had come, so that a database which lost something is noticed.

SQLite takes a damaged, cut or missing write-ahead file for one that ended there, and says nothing. So the database counts its
commits, and this file has the same count, written after each commit. A database that has less than the file says has lost the
difference. The file is written in place and never waited for: when it has less than the database, nothing is lost.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

_MAGIC: Final = b"noriajnl"
_LAYOUT: Final = struct.Struct("<8sII16sQQQ")  # magic, layout, orderly, identity, commits, accepted, held
_CHECK: Final = struct.Struct("<I")
_VERSION: Final = 1


class CommitCounts(NamedTuple):
    """How far a journal has come: transactions committed, requests ever accepted, and requests that it holds now."""

    commits: int = 0
    accepted: int = 0
    held: int = 0


class LastCommitRecord(NamedTuple):
    """What the file says: of which database, how far that had come, and whether its last writer closed it in order."""

    identity: bytes
    commit_counts: CommitCounts
    orderly: bool


def commits_path(database: Path) -> Path:
    """Where the file of a database is; its name begins like that of the database."""
    return Path(f"{database}-commits")


def read_commits(path: Path) -> LastCommitRecord | None:
    """What the file says; None where there is none. Raises ValueError when it is damaged, OSError when it cannot be read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _LAYOUT.size + _CHECK.size:
        raise ValueError(f"{path} has {len(content)} bytes instead of {_LAYOUT.size + _CHECK.size}")
    head, (check,) = content[: _LAYOUT.size], _CHECK.unpack(content[_LAYOUT.size :])
    magic, version, orderly, identity, commits, accepted, held = _LAYOUT.unpack(head)
    if magic != _MAGIC or version != _VERSION or zlib.crc32(head) != check:
        raise ValueError(f"{path} is damaged")
    return LastCommitRecord(identity, CommitCounts(commits, accepted, held), bool(orderly))


class CommitsFile:
    """The file of one database, open for its one writer. identity: 16 bytes that the database has too.

    Raises OSError when it cannot be made; what cannot be written later is left out, and logged by whoever asks.
    """

    def __init__(self, path: Path, identity: bytes) -> None:
        self._identity = identity
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._descriptor, _LAYOUT.size + _CHECK.size)

    def write(self, commit_counts: CommitCounts, *, orderly: bool = False) -> bool:
        """Say how far the database has come; False when the disk does not take it."""
        head = _LAYOUT.pack(_MAGIC, _VERSION, orderly, self._identity, *commit_counts)
        try:
            os.pwrite(self._descriptor, head + _CHECK.pack(zlib.crc32(head)), 0)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
