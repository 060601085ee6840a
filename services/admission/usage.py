"""Hands what tenants used to the database: gathered by tenant, class and hour, at most once a second."""

import time
from collections.abc import Mapping
from dataclasses import astuple
from typing import Final

from noria.services.admission.core.accounts import Account, Usage
from noria.services.admission.database import Database, Write
from noria.shared.usage import ADD, HOUR_S

_INTERVAL_NS: Final = 1_000_000_000


class UsageBook:
    """What waits to be written. What the database does not take now waits on."""

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

    def advance(self, now_ns: int) -> int | None:
        """Write when it is time; returns when that is next, or None when nothing waits."""
        if self._waiting and now_ns >= self._next_ns:
            self._next_ns = now_ns + _INTERVAL_NS
            self.flush()
        return self._next_ns if self._waiting else None

    def flush(self) -> None:
        """Write now."""
        rows = [(*account, hour, *astuple(used)) for (account, hour), used in self._waiting.items()]
        if rows and self._database.write(Write(ADD, rows)):
            self._waiting.clear()

    def close(self) -> None:
        """Write what waits and close the database."""
        self.flush()
        self._database.close()
