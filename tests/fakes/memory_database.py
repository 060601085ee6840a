"""A database that outlives the lives of a simulation: the product's own, without a file, and without room when told so."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from noria.services.admission.storage.commit_count import CommitCounts
from noria.services.admission.storage.database import AdmissionDatabase, DatabaseWrite
from noria.services.admission.storage.journal import SCHEMA as JOURNAL_SCHEMA
from noria.services.admission.storage.usage_writer import TABLES
from noria.shared.telemetry.log import logger


class MemoryDatabase(AdmissionDatabase):
    """Holds the tables of the journal and of usage. full: nothing is taken. commits: what was taken so far."""

    def __init__(self) -> None:
        self.path = Path(":memory:")
        self.failing = False
        self.full = False
        self.commits = 0
        self._log = logger("admission")
        self._commits = 0
        self.commit_counts, self._file, self._behind = CommitCounts(), None, False
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in (*TABLES, *JOURNAL_SCHEMA):
            self._connection.execute(statement)

    def commit(self, writes: Sequence[DatabaseWrite], *, accepted: int = 0, forgotten: int = 0) -> bool:
        if self.full:
            return False
        try:
            taken = super().commit(writes, accepted=accepted, forgotten=forgotten)
        except BaseException:  # a process that ends here leaves nothing half done
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        assert taken, writes
        self.commits += 1
        return True

    def count(self, table: str) -> int:
        """Rows of a table."""
        ((count,),) = self.read(f"SELECT count(*) FROM {table}")
        assert isinstance(count, int)
        return count

    def close(self) -> None:
        """It stays for the next life."""

    def checkpoint_if_long(self) -> None:
        """There is no log."""
