"""The file in which admission keeps what must outlive it: SQLite, written by one thread in groups.

Decides nothing of what is kept. What waits when a transaction ends is written in the next one together, so that the loop
of the actor never waits for the disk, and a burst costs one commit. Only the owner may read the file.
"""

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from noria.proto.base import Service
from noria.shared.errors import UserError
from noria.shared.log import logger

WRITES_MAX: Final = 4096
_BUSY_S: Final = 5.0
_RETRY_S: Final = 1.0
Value = str | int | float | bytes | None


class Write(NamedTuple):
    """One statement with its rows. committed: called in the writing thread once they are on disk."""

    statement: str
    rows: Sequence[tuple[Value, ...]]
    committed: Callable[[], None] | None = None


class Database:
    """One file and its writing thread. Raises UserError when the file cannot be had."""

    def __init__(self, path: Path, schema: Sequence[str]) -> None:
        self.path = path
        self._writes: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._log = logger(Service.ADMISSION.value)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            for statement in schema:
                self._connection.execute(statement)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot keep a database at {path}: {error}; choose another --state-dir") from error
        self._thread = threading.Thread(target=self._run, name="database", daemon=True)
        self._thread.start()

    def write(self, write: Write) -> bool:
        """Have rows written soon; False when too much waits already, and then nothing was taken."""
        if self._writes.qsize() >= WRITES_MAX:
            return False
        self._writes.put(write)
        return True

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._writes.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (first := self._writes.get()) is not None:
            batch, last = [first], False
            while not self._writes.empty() and not last:
                following = self._writes.get()
                if following is None:
                    last = True
                else:
                    batch.append(following)
            self._commit(batch, last=last)
            if last:
                return

    def _commit(self, batch: list[Write], *, last: bool) -> None:
        """Write a batch whole; a disk that is full or busy is tried again, unless there is no time left."""
        pause = threading.Event()
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                for each in batch:
                    self._connection.executemany(each.statement, each.rows)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                self._log.error("database not written", path=str(self.path), error=str(error), given_up=last)
                if last:
                    return
                pause.wait(_RETRY_S)
            else:
                break
        for each in batch:
            if each.committed is not None:
                each.committed()
