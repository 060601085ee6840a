"""The file in which admission keeps what must outlive it: SQLite with a write-ahead log, for its owner's eyes alone.

A turn's writes are one transaction, made in the actor's own thread: without waiting for the disk it costs some tens of
microseconds, less than handing it to another thread and being woken again. What is committed survives the death of every
process; that of the machine only where each commit waits for the disk (`sync="full"`). The log is copied back into the
file, which does wait for the disk, by a thread of its own. A journal's owner counts commits, in the database and in a file
beside it (`commits`). Decides nothing of what is kept.
"""

import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from noria.proto.base import Service
from noria.services.admission.storage.commit_count import CommitCounts, CommitsFile, commits_path
from noria.shared.errors import UserError
from noria.shared.process.locks import Lock
from noria.shared.telemetry.log import logger

_BUSY_S: Final = 0.05  # the loop waits for it
_LOG_BYTES: Final = 4 * 1024 * 1024
_LOG_BYTES_MAX: Final = 32 * 1024 * 1024
_CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"
_COMMITS_PER_LOOK: Final = 64
_CHECKPOINT_TRIES: Final = 5
_CHECKPOINT_PAUSE_S: Final = 0.02
# One row: the journal's format, which database this is, and how far it has come.
COUNTED: Final = (
    "CREATE TABLE IF NOT EXISTS journal (one INTEGER PRIMARY KEY, format INTEGER NOT NULL, identity BLOB NOT NULL, "
    "commits INTEGER NOT NULL, accepted INTEGER NOT NULL)"
)
_COUNT: Final = "UPDATE journal SET commits = ?, accepted = ?"
Sync = Literal["normal", "full"]
Value = str | int | float | bytes | None
Row = tuple[Value, ...]


class DatabaseWrite(NamedTuple):
    """One statement with its rows."""

    statement: str
    rows: Sequence[Row]


class AdmissionDatabase:
    """One file, written by the thread that made it. Raises UserError when the file cannot be had.

    sync: whether a commit waits for the disk (full) or not (normal). commit_counts: commits and requests so far, if they are counted.
    lock: that of its owner, given back when the file is closed.
    """

    def __init__(self, path: Path, schema: Sequence[str], sync: Sync = "normal") -> None:
        self.path = path
        self.failing = False
        self.commit_counts = CommitCounts()
        self.lock: Lock | None = None
        self._file: CommitsFile | None = None
        self._behind = False
        self._log = logger(Service.ADMISSION.value)
        self._commits = 0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {sync.upper()}")
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute("PRAGMA secure_delete = ON")
            for statement in schema:
                self._connection.execute(statement)
        except (OSError, sqlite3.Error) as error:
            raise UserError(_unusable(path, error)) from error
        self._checkpoints = _Checkpoints(path)

    def count(self, identity: bytes, commit_counts: CommitCounts) -> None:
        """Count commits from here on, in the row of `COUNTED`, which is there, and in a file beside the database.

        The file is first written after the first commit. To be called by the one process that owns the journal. Raises
        UserError when the file cannot be made.
        """
        path = commits_path(self.path)
        try:
            self._file = CommitsFile(path, identity)
        except OSError as error:
            raise UserError(_unusable(path, error)) from error
        self.commit_counts = commit_counts

    def commit(self, writes: Sequence[DatabaseWrite], *, accepted: int = 0, forgotten: int = 0) -> bool:
        """Write all of it, or nothing: False when the disk is full or the file busy, and it is worth trying again.

        accepted, forgotten: how many requests it adds to the journal, and takes from it.
        """
        commits, so_far, held = self.commit_counts
        commit_counts = CommitCounts(commits + 1, so_far + accepted, held + accepted - forgotten)
        try:
            if self._file is None and len(writes) == 1 and len(writes[0].rows) == 1:
                self._connection.execute(writes[0].statement, writes[0].rows[0])
            else:
                self._connection.execute("BEGIN IMMEDIATE")
                for each in writes:
                    self._connection.executemany(each.statement, each.rows)
                if self._file is not None:
                    self._connection.execute(_COUNT, commit_counts[:2])
                self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if not self.failing:
                self._log.error("database not written", path=str(self.path), error=str(error))
            self.failing = True
            return False
        if self.failing:
            self._log.info("database written again", path=str(self.path))
        self.failing = False
        if self._file is not None:
            self.commit_counts = commit_counts
            self._write_commit_count(orderly=False)
        self._commits += 1
        if self._commits % _COMMITS_PER_LOOK == 0:
            self.checkpoint_if_long()
        return True

    def checkpoint_if_long(self) -> None:
        """See whether the log is long enough to be copied back; waits for that only where it has become very long."""
        if self._checkpoints.checkpoint_if_long() > _LOG_BYTES_MAX:
            self._checkpoints.copy(self._connection)

    def read(self, statement: str) -> list[Row]:
        """All rows of a query. Raises UserError when the file cannot be read."""
        try:
            return self._connection.execute(statement).fetchall()
        except sqlite3.Error as error:
            raise UserError(_unusable(self.path, error)) from error

    def close(self) -> None:
        """Close the file."""
        self._checkpoints.close()
        self._connection.close()
        if self._file is not None:
            self._write_commit_count(orderly=True)
            self._file.close()
            self._file = None
        if self.lock is not None:
            self.lock.release()

    def _write_commit_count(self, *, orderly: bool) -> None:
        """Write the commit count to the file beside the database; a failure leaves losses unnoticed, so it is logged once."""
        assert self._file is not None
        behind = not self._file.write(self.commit_counts, orderly=orderly)
        if behind and not self._behind:
            self._log.error("commits not counted", path=str(commits_path(self.path)))
        self._behind = behind


class _Checkpoints:
    """Copies the log back into the file once it is long, in a thread of its own that keeps nobody waiting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = Path(f"{path}-wal")
        self._wanted = threading.Event()
        self._copying = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._thread.start()

    def checkpoint_if_long(self) -> int:
        """Have it done if it is time; returns the length of the log."""
        try:
            length = self._log_path.stat().st_size
        except OSError:
            return 0  # there is no log
        if length > _LOG_BYTES:
            self._wanted.set()
        return length

    def copy(self, connection: sqlite3.Connection) -> bool:
        """Copy the log back now, after whoever does so already; returns whether all of it was."""
        with self._copying:  # SQLite would tell the second that it is busy, and the log would go on growing
            _, logged, copied = connection.execute(_CHECKPOINT).fetchone()
        return bool(logged == copied)

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        connection = sqlite3.connect(self._path, timeout=0, check_same_thread=False, isolation_level=None)
        pause = threading.Event()
        while self._wanted.wait() and not self._closing:
            self._wanted.clear()
            for _ in range(_CHECKPOINT_TRIES):
                try:
                    whole = self.copy(connection)
                except sqlite3.Error:
                    break  # tried again when the log has grown
                if whole:
                    break
                pause.wait(_CHECKPOINT_PAUSE_S)
        connection.close()


def _unusable(path: Path, error: Exception) -> str:
    if isinstance(error, sqlite3.OperationalError | OSError):
        return f"cannot keep a database at {path}: {error}; free it or choose another --state-dir"
    return (
        f"{path} is damaged ({error}): move it away, with the files whose names begin alike, and start again; requests "
        "that it still held are lost, and what was recorded of usage"
    )
