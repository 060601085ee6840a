"""What tenants used, on its way to the database: gathered by tenant, class and hour."""

import time
from collections.abc import Mapping
from dataclasses import astuple
from typing import Final

from noria.services.admission.core.accounts import Account, Usage
from noria.services.admission.database import Database, Write
from noria.shared.usage import ADD, HOUR_S

_INTERVAL_NS: Final = 1_000_000_000


class UsageBook:
    """What waits to be written: with the journal's pages, or by itself at most once a second."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[tuple[Account, int], Usage] = {}
        self._next_ns = 0

    def add(self, usage: Mapping[Account, Usage]) -> None:
        """Take what was used in a turn."""
        if not usage:
            return
        hour = int(time.time()) // HOUR_S * HOUR_S
        for account, used in usage.items():
            self._waiting.setdefault((account, hour), Usage()).add(used)

    def writes(self) -> list[Write]:
        """What waits, as part of a transaction; when that is committed, `written` must be called."""
        rows = [(*account, hour, *astuple(used)) for (account, hour), used in self._waiting.items()]
        return [Write(ADD, rows)] if rows else []

    def written(self) -> None:
        """What waited is on disk."""
        self._waiting.clear()

    def advance(self, now_ns: int) -> int | None:
        """Write when it is time; returns when that is next, or None when nothing waits."""
        if self._waiting and now_ns >= self._next_ns:
            self._next_ns = now_ns + _INTERVAL_NS
            self.flush()
        return self._next_ns if self._waiting else None

    def flush(self) -> None:
        """Write now; what the database does not take waits on."""
        if self._waiting and self._database.commit(self.writes()):
            self.written()

    def close(self) -> None:
        """Write what waits and close the database."""
        self.flush()
        self._database.close()
