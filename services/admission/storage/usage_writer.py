"""Writes what tenants use to the database, summed by tenant, class and hour.

With it goes how much of the scheduler's costs are in it, in the same transaction: so each cost is counted once, whoever
dies between telling, writing and answering.
"""

import time
from collections.abc import Mapping
from dataclasses import astuple
from typing import Final

import msgspec

from noria.services.admission.core.ledger.usage_counters import CountedCosts
from noria.services.admission.core.tenants.class_totals import TokenUsage, UsageKey
from noria.services.admission.storage.database import AdmissionDatabase, DatabaseWrite
from noria.shared.usage import ADD, HOUR_S, SCHEMA

TABLES: Final = (
    SCHEMA,
    "CREATE TABLE IF NOT EXISTS told (one INTEGER PRIMARY KEY, life INTEGER NOT NULL, number INTEGER NOT NULL)",
)
_SET_COSTS: Final = "INSERT OR REPLACE INTO told VALUES (1, ?, ?)"
_INTERVAL_NS: Final = 1_000_000_000


class UsageWriter:
    """Collects usage and writes it with the journal's pages, or by itself at most once a second.

    recorded: which costs are written. Raises UserError when the database cannot be read.
    """

    def __init__(self, database: AdmissionDatabase) -> None:
        self._database = database
        rows = [msgspec.convert(row, tuple[int, int]) for row in database.read("SELECT life, number FROM told")]
        self.recorded = self._costs = CountedCosts(*rows[0]) if rows else CountedCosts()
        self._waiting: dict[tuple[UsageKey, int], TokenUsage] = {}
        self._next_ns = 0

    def add(self, usage: Mapping[UsageKey, TokenUsage], costs: CountedCosts) -> None:
        """Take what was used in a turn; costs: those counted in it and before it."""
        self._costs = costs
        if not usage:
            return
        hour = int(time.time()) // HOUR_S * HOUR_S
        for usage_key, used in usage.items():
            self._waiting.setdefault((usage_key, hour), TokenUsage()).add(used)

    def writes(self) -> list[DatabaseWrite]:
        """The collected usage as writes of a transaction; `written` must be called when that is committed."""
        rows = [(*usage_key, hour, *astuple(used)) for (usage_key, hour), used in self._waiting.items()]
        writes = [DatabaseWrite(ADD, rows)] if rows else []
        return writes if self._costs == self.recorded else [*writes, DatabaseWrite(_SET_COSTS, [self._costs])]

    def written(self) -> None:
        """Note that the collected usage is on disk."""
        self._waiting.clear()
        self.recorded = self._costs

    def advance(self, now_ns: int) -> int | None:
        """Write when it is time; returns when that is next, or None when nothing waits."""
        if self._waits and now_ns >= self._next_ns:
            self._next_ns = now_ns + _INTERVAL_NS
            self.flush()
        return self._next_ns if self._waits else None

    def flush(self) -> None:
        """Write now; what the database does not take waits on."""
        if self._waits and self._database.commit(self.writes()):
            self.written()

    @property
    def _waits(self) -> bool:
        return bool(self._waiting) or self._costs != self.recorded

    def close(self) -> None:
        """Write what waits and close the database."""
        self.flush()
        self._database.close()
