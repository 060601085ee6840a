"""The journal: accepted requests and their output on disk, so that a new process of admission can continue them.

One page a turn. Requests have a row each; what streams emit is appended to a log of pages, whose rows lie next to one
another on disk, because a row for each stream would be a page of the file for each; a fold turns the log into a piece for
each stream and empties it. Everything of a request is deleted when it is forgotten, what the log still says of it with the
next fold, seconds later.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from noria.proto.base import Service, Stream
from noria.proto.scheduling import Doubt
from noria.services.admission.core.journaling import JournalContents
from noria.services.admission.core.ledger.request import Request
from noria.services.admission.core.ledger.unsaved_changes import JournalPage, JournalPart, RecordedStream, parts_of
from noria.services.admission.core.tenants.class_totals import ClassTotals, UsageKey
from noria.services.admission.storage import journal_records
from noria.services.admission.storage.commit_count import commits_path
from noria.services.admission.storage.database import COUNTED, AdmissionDatabase, DatabaseWrite, Sync
from noria.services.admission.storage.journal_findings import FORMAT, JournalFindings, check_format, examine, kept_aside
from noria.services.admission.storage.journal_records import WallClockOffset
from noria.services.admission.storage.usage_writer import TABLES
from noria.shared.errors import UserError
from noria.shared.process.locks import Lock, LockRecord
from noria.shared.telemetry.log import logger

SCHEMA: Final = (
    COUNTED,
    "CREATE TABLE IF NOT EXISTS requests (number INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS pieces (number INTEGER NOT NULL, choice INTEGER NOT NULL, place INTEGER NOT NULL, "
    "body BLOB NOT NULL, PRIMARY KEY (number, choice, place)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS pages (place INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS began (one INTEGER PRIMARY KEY, at INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS seen (one INTEGER PRIMARY KEY, at INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS traffic (place INTEGER PRIMARY KEY, tenant TEXT NOT NULL, class TEXT NOT NULL, "
    "body BLOB NOT NULL, UNIQUE (tenant, class))",
    "CREATE TABLE IF NOT EXISTS doubts (number INTEGER NOT NULL, choice INTEGER NOT NULL, party INTEGER NOT NULL, "
    "failures INTEGER NOT NULL, tokens INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS buckets (tenant TEXT PRIMARY KEY, level REAL NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID",
)
_JOURNAL: Final = "INSERT OR REPLACE INTO journal VALUES (1, ?, ?, ?, ?)"
_ACCEPT: Final = "INSERT INTO requests VALUES (?, ?)"
_PAGE: Final = "INSERT INTO pages (body) VALUES (?)"
_PIECE: Final = (
    "INSERT INTO pieces VALUES (?1, ?2, "
    "(SELECT ifnull(max(place), 0) + 1 FROM pieces WHERE number = ?1 AND choice = ?2), ?3)"
)
_CLEAR: Final = "DELETE FROM pages"
_CLEAR_PIECES: Final = "DELETE FROM pieces"
_CLEAR_TRAFFIC: Final = "DELETE FROM traffic"
_FORGET: Final = ("DELETE FROM requests WHERE number = ?", "DELETE FROM pieces WHERE number = ?")
_BEGAN: Final = "INSERT OR IGNORE INTO began VALUES (1, ?)"
_SEEN: Final = "INSERT OR REPLACE INTO seen VALUES (1, ?)"
# The place of a row stays, so that tenants and classes are read in the order in which they first occurred.
_TRAFFIC: Final = (
    "INSERT INTO traffic (tenant, class, body) VALUES (?, ?, ?) "
    "ON CONFLICT (tenant, class) DO UPDATE SET body = excluded.body"
)
_BUCKET: Final = "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?)"
_CLEAR_DOUBTS: Final = "DELETE FROM doubts"
_DOUBT: Final = "INSERT INTO doubts VALUES (?, ?, ?, ?, ?)"
_Row = TypeVar("_Row")


class Journal:
    """Writes pages into a database that has the tables of `SCHEMA`, and reads them back.

    findings: what was found in its files before. unreadable: rows that `read` had to leave out.
    """

    def __init__(self, database: AdmissionDatabase, findings: JournalFindings | None = None) -> None:
        self.findings = findings or JournalFindings()
        self.unreadable = 0
        self._database = database
        self._log = logger(Service.ADMISSION.value)

    def write(self, page: JournalPage, clock: WallClockOffset, others: Sequence[DatabaseWrite] = ()) -> bool:
        """Put a page on record, and other writes with it, all or nothing; False when that has to be tried again."""
        return self._database.commit(
            [*_writes(page, clock), *others], accepted=len(page.accepted), forgotten=len(page.forgotten)
        )

    def read(self, now_ns: int, clock: WallClockOffset) -> JournalContents:
        """Everything on record that can be read, which is folded by this. Raises UserError when the file is not to be had."""
        requests, class_totals = self._read_requests(clock), self._read_traffic()
        seen_ns = self._read_streams(requests, class_totals, clock)
        for (at,) in self._rows("SELECT at FROM seen", tuple[int]):
            seen_ns = max(seen_ns, clock.monotonic(at))
        levels = {
            tenant: (level, clock.monotonic(at))
            for tenant, level, at in self._rows("SELECT * FROM buckets", tuple[str, float, int])
        }
        doubts = {
            Stream(number, choice): Doubt(*rest)
            for number, choice, *rest in self._rows("SELECT * FROM doubts", tuple[int, int, int, int, int])
        }
        self._fold(requests, class_totals, now_ns, clock)
        asleep_ns = max(now_ns - seen_ns, 0) if seen_ns else 0
        self._database.commit([DatabaseWrite(_BEGAN, [(clock.wall(now_ns),)])])
        return JournalContents(list(requests.values()), class_totals, levels, asleep_ns, doubts)

    def began_unix_ns(self) -> int:
        """When the journal was first read, in Unix nanoseconds: its counters start there."""
        return next((at for (at,) in self._rows("SELECT at FROM began", tuple[int])), 0)

    def report(self) -> dict[str, object]:
        """The state of the journal for `/debug/state`: its format, how far it has come, and what is missing since its last start."""
        found = self.findings
        return {
            "path": str(self._database.path),
            "format": FORMAT,
            "commits": self._database.commit_counts.commits,
            "requests": self._database.commit_counts.held,
            "requests_missing": found.requests_missing,
            "commits_missing": found.commits_missing,
            "rows_unreadable": self.unreadable,
            "last_stop": found.last_stop,
            "kept_aside": kept_aside(self._database.path),
        }

    def clear(self) -> None:
        """Delete what is on record of requests, and what was counted of them."""
        everything = (
            "DELETE FROM requests",
            "DELETE FROM traffic",
            "DELETE FROM began",
            "DELETE FROM journal",
            _CLEAR,
            _CLEAR_PIECES,
            _CLEAR_DOUBTS,
        )
        self._database.commit([DatabaseWrite(each, [()]) for each in everything])

    def _rows(self, statement: str, kind: type[_Row]) -> Iterator[_Row]:
        for row in self._database.read(statement):
            try:
                yield msgspec.convert(row, kind)
            except msgspec.ValidationError as error:
                self._left_out(statement, error)

    def _left_out(self, what: str, error: Exception) -> None:
        self.unreadable += 1
        self._log.error("row of the journal is not readable", row=what, error=str(error))

    def _read_requests(self, clock: WallClockOffset) -> dict[int, Request]:
        requests = {}
        for number, body in self._rows("SELECT number, body FROM requests ORDER BY number", tuple[int, bytes]):
            try:
                requests[number] = journal_records.decode_request(number, body, clock)
            except ValueError as error:  # which MsgspecError is
                self._left_out(f"request {number}", error)
        return requests

    def _read_traffic(self) -> dict[UsageKey, ClassTotals]:
        class_totals = {}
        statement = "SELECT tenant, class, body FROM traffic ORDER BY place"
        for tenant, name, body in self._rows(statement, tuple[str, str, bytes]):
            try:
                class_totals[UsageKey(tenant, name)] = journal_records.decode_class_totals(UsageKey(tenant, name), body)
            except ValueError as error:
                self._left_out(f"counts of {tenant}, {name}", error)
        return class_totals

    def _read_streams(
        self, requests: Mapping[int, Request], class_totals: dict[UsageKey, ClassTotals], clock: WallClockOffset
    ) -> int:
        """Restore the output of choices and the counters; returns when the last page was written.

        A stream stands where the first row of it is that cannot be read: it is computed on from there.
        """
        seen_ns = 0
        stopped: set[Stream] = set()
        for number, choice, body in self._rows(
            "SELECT number, choice, body FROM pieces ORDER BY number, choice, place", tuple[int, int, bytes]
        ):
            stream = Stream(number, choice)
            try:
                written_ns, parts, _ = journal_records.decode_parts(body, clock)
            except ValueError as error:
                self._left_out(f"tokens of {stream}", error)
                stopped.add(stream)
                continue
            seen_ns = max(seen_ns, written_ns)
            self._apply(requests, parts, stopped)
        for place, body in self._rows("SELECT place, body FROM pages ORDER BY place", tuple[int, bytes]):
            try:
                written_ns, parts, counted = journal_records.decode_parts(body, clock)
            except ValueError as error:
                self._left_out(f"page {place}", error)
                stopped.update(choice.stream for request in requests.values() for choice in request.choices)
                continue
            seen_ns = max(seen_ns, written_ns)
            for usage_key, happened in counted:
                class_totals.setdefault(usage_key, ClassTotals()).add(happened)
            self._apply(requests, parts, stopped)
        return seen_ns

    def _apply(self, requests: Mapping[int, Request], parts: Sequence[JournalPart], stopped: set[Stream]) -> None:
        for part in parts:
            stream = Stream(part.number, part.choice)
            request = requests.get(part.number)  # None for one that is forgotten
            if request is None or part.choice >= len(request.choices) or stream in stopped:
                continue
            try:
                journal_records.apply_part(request.choices[part.choice], part)
            except ValueError as error:
                self._left_out(f"tokens of {stream}", error)
                stopped.add(stream)

    def _fold(
        self,
        requests: Mapping[int, Request],
        class_totals: Mapping[UsageKey, ClassTotals],
        now_ns: int,
        clock: WallClockOffset,
    ) -> None:
        """Make one piece of everything that is known of each stream, and one row of the counters of each tenant and class."""
        marks = (RecordedStream(choice) for request in requests.values() for choice in request.choices)
        pieces = _pieces(tuple(parts_of(marks, fold=True)), now_ns, clock)
        writes = [DatabaseWrite(_CLEAR, [()]), DatabaseWrite(_CLEAR_PIECES, [()]), DatabaseWrite(_PIECE, pieces)]
        if self.unreadable:
            known = ", ".join(str(number) for number in requests)
            unread = f"DELETE FROM requests WHERE number NOT IN ({known})"  # noqa: S608 - numbers alone
            writes += [DatabaseWrite(unread, [()]), DatabaseWrite(_CLEAR_TRAFFIC, [()])]
        writes.append(_rows_of(class_totals.items()))
        self._database.commit_counts = self._database.commit_counts._replace(held=len(requests))
        if not self._database.commit(writes):
            raise UserError(
                f"{self._database.path} cannot be written; make room on the disk, end whatever has the file locked, or "
                "choose another --state-dir"
            )


def open_journal(path: Path, *, kept: bool, sync: Sync = "normal") -> tuple[AdmissionDatabase, Journal | None]:
    """The database at `path`, and the journal in it, which only one process may write.

    Where none is kept, that is None, and nothing is left of an earlier one. What is damaged is kept aside first. Raises
    UserError when another process has it, or it is of a format that is not read.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = Lock(path.parent, "journal")
        holder = lock.acquire(LockRecord(Service.ADMISSION.value, os.getpid(), ""))
    except OSError as error:
        raise UserError(f"cannot keep a database at {path}: {error}; free it or choose another --state-dir") from error
    if holder is not None and kept:
        raise UserError(
            f"the journal in {path} belongs to process {holder.pid}; stop that stack, choose another --state-dir "
            "or set runtime.journal = false"
        )
    schema = (*TABLES, *SCHEMA)
    if not kept:
        check_format(path)
        database = AdmissionDatabase(path, schema, sync)
        if holder is None:
            Journal(database).clear()
            commits_path(path).unlink(missing_ok=True)
            lock.release()
        return database, None
    findings = examine(path, schema)
    database = AdmissionDatabase(path, schema, sync)
    if database.read("SELECT format, identity FROM journal") != [(FORMAT, findings.identity)]:
        database.commit([DatabaseWrite(_JOURNAL, [(FORMAT, findings.identity, *findings.commit_counts[:2])])])
    database.count(findings.identity, findings.commit_counts)
    database.lock = lock
    return database, Journal(database, findings)


def _writes(page: JournalPage, clock: WallClockOffset) -> Iterator[DatabaseWrite]:
    if page.accepted:
        yield DatabaseWrite(
            _ACCEPT, [(each.number, journal_records.encode_request(each, clock)) for each in page.accepted]
        )
    if page.fold:
        yield DatabaseWrite(_CLEAR, [()])
        yield DatabaseWrite(_PIECE, _pieces(page.parts, page.at_ns, clock))
    elif page.parts or page.counted:
        yield DatabaseWrite(_PAGE, [(journal_records.encode_parts(page.parts, page.at_ns, clock, page.counted),)])
    if page.forgotten:
        for statement in _FORGET:
            yield DatabaseWrite(statement, [(number,) for number in page.forgotten])
    if page.fold or not (page.parts or page.counted):
        yield DatabaseWrite(_SEEN, [(clock.wall(page.at_ns),)])
    if page.class_totals:
        yield _rows_of(page.class_totals)
    if page.doubts is not None:
        rows = [(*stream, each.group, each.failures_alone, each.output_tokens) for stream, each in page.doubts.items()]
        yield DatabaseWrite(_CLEAR_DOUBTS, [()])
        yield DatabaseWrite(_DOUBT, rows)
    if page.levels:
        yield DatabaseWrite(_BUCKET, [(tenant, level, clock.wall(page.at_ns)) for tenant, level in page.levels])


def _rows_of(class_totals: Iterable[tuple[UsageKey, ClassTotals]]) -> DatabaseWrite:
    return DatabaseWrite(
        _TRAFFIC,
        [(*usage_key, journal_records.encode_class_totals(usage_key, each)) for usage_key, each in class_totals],
    )


def _pieces(parts: Sequence[JournalPart], at_ns: int, clock: WallClockOffset) -> list[tuple[int, int, bytes]]:
    return [(part.number, part.choice, journal_records.encode_parts((part,), at_ns, clock)) for part in parts]
