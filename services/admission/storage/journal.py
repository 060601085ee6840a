"""The journal: what admission answers for, on disk, so that a next life can go on where this one ended.

One page a turn. Requests have a row each; what streams emit is appended to a log of pages, whose rows lie next to one
another on disk, because a row for each stream would be a page of the file for each; a fold turns the log into a piece for
each stream and empties it. Everything of a request is deleted when it is forgotten, what the log still says of it with the
next fold, seconds later.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from noria.proto.base import Service, Stream
from noria.proto.scheduling import Doubt
from noria.services.admission.core.ledger.request import Request
from noria.services.admission.core.ledger.unsaved_changes import Mark, Page, Part, parts_of
from noria.services.admission.core.recovery import Recovered
from noria.services.admission.core.tenants.class_totals import Account, Traffic
from noria.services.admission.storage import journal_records
from noria.services.admission.storage.database import Database, Write
from noria.services.admission.storage.journal_records import Clock
from noria.shared.errors import UserError
from noria.shared.process.locks import Holder, Lock

SCHEMA: Final = (
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
_ACCEPT: Final = "INSERT INTO requests VALUES (?, ?)"
_PAGE: Final = "INSERT INTO pages (body) VALUES (?)"
_PIECE: Final = (
    "INSERT INTO pieces VALUES (?1, ?2, "
    "(SELECT ifnull(max(place), 0) + 1 FROM pieces WHERE number = ?1 AND choice = ?2), ?3)"
)
_CLEAR: Final = "DELETE FROM pages"
_CLEAR_PIECES: Final = "DELETE FROM pieces"
_FORGET: Final = ("DELETE FROM requests WHERE number = ?", "DELETE FROM pieces WHERE number = ?")
_BEGAN: Final = "INSERT OR IGNORE INTO began VALUES (1, ?)"
_SEEN: Final = "INSERT OR REPLACE INTO seen VALUES (1, ?)"
# The place of an account stays, so that they are read in the order in which they were first heard of.
_TRAFFIC: Final = (
    "INSERT INTO traffic (tenant, class, body) VALUES (?, ?, ?) "
    "ON CONFLICT (tenant, class) DO UPDATE SET body = excluded.body"
)
_BUCKET: Final = "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?)"
_CLEAR_DOUBTS: Final = "DELETE FROM doubts"
_DOUBT: Final = "INSERT INTO doubts VALUES (?, ?, ?, ?, ?)"
_Row = TypeVar("_Row")


class Journal:
    """Writes pages into a database that has the tables of `SCHEMA`, and reads them back."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, page: Page, clock: Clock, others: Sequence[Write] = ()) -> bool:
        """Put a page on record, and other writes with it, all or nothing; False when that has to be tried again."""
        return self._database.commit([*_writes(page, clock), *others])

    def read(self, now_ns: int, clock: Clock) -> Recovered:
        """Everything on record, which is folded by this. Raises UserError when it cannot be read or written."""
        try:
            requests = {
                number: journal_records.decode_request(number, body, clock)
                for number, body in self._rows("SELECT number, body FROM requests ORDER BY number", tuple[int, bytes])
            }
            accounts = self._rows("SELECT tenant, class, body FROM traffic ORDER BY place", tuple[str, str, bytes])
            traffic = {Account(tenant, name): journal_records.decode_traffic(body) for tenant, name, body in accounts}
            seen_ns = self._read_streams(requests, traffic, clock)
            for (at,) in self._rows("SELECT at FROM seen", tuple[int]):
                seen_ns = max(seen_ns, clock.own(at))
            levels = {
                tenant: (level, clock.own(at))
                for tenant, level, at in self._rows("SELECT * FROM buckets", tuple[str, float, int])
            }
            doubts = {
                Stream(number, choice): Doubt(*rest)
                for number, choice, *rest in self._rows("SELECT * FROM doubts", tuple[int, int, int, int, int])
            }
        except (msgspec.MsgspecError, ValueError) as error:
            raise UserError(_unreadable(self._database, error)) from error
        self._fold(requests, traffic, now_ns, clock)
        asleep_ns = max(now_ns - seen_ns, 0) if seen_ns else 0
        self._database.commit([Write(_BEGAN, [(clock.wall(now_ns),)])])
        return Recovered(list(requests.values()), traffic, levels, asleep_ns, doubts)

    def began_unix_ns(self) -> int:
        """When it was first read: since then it counts."""
        return next((at for (at,) in self._rows("SELECT at FROM began", tuple[int])), 0)

    def clear(self) -> None:
        """Delete what is on record of requests, and what was counted of them."""
        everything = (
            "DELETE FROM requests",
            "DELETE FROM traffic",
            "DELETE FROM began",
            _CLEAR,
            _CLEAR_PIECES,
            _CLEAR_DOUBTS,
        )
        self._database.commit([Write(each, [()]) for each in everything])

    def _rows(self, statement: str, kind: type[_Row]) -> Iterator[_Row]:
        return (msgspec.convert(row, kind) for row in self._database.read(statement))

    def _read_streams(self, requests: Mapping[int, Request], traffic: dict[Account, Traffic], clock: Clock) -> int:
        """Give choices what they had emitted, and accounts what had happened; returns when the last page was written."""
        seen_ns = 0
        for table in ("pieces ORDER BY number, choice, place", "pages ORDER BY place"):
            for (body,) in self._rows(f"SELECT body FROM {table}", tuple[bytes]):  # noqa: S608 - our own names
                written_ns, parts, counted = journal_records.decode_parts(body, clock)
                seen_ns = max(seen_ns, written_ns)
                for account, happened in counted:
                    traffic.setdefault(account, Traffic()).add(happened)
                for part in parts:
                    request = requests.get(part.number)  # None for one that is forgotten
                    if request is not None and part.choice < len(request.choices):
                        journal_records.apply_part(request.choices[part.choice], part)
        return seen_ns

    def _fold(
        self, requests: Mapping[int, Request], traffic: Mapping[Account, Traffic], now_ns: int, clock: Clock
    ) -> None:
        """Make one piece of everything that is known of each stream, and one row of all that happened to an account."""
        marks = (Mark(choice) for request in requests.values() for choice in request.choices)
        pieces = _pieces(tuple(parts_of(marks, fold=True)), now_ns, clock)
        writes = (Write(_CLEAR, [()]), Write(_CLEAR_PIECES, [()]), Write(_PIECE, pieces), _rows_of(traffic.items()))
        if not self._database.commit(writes):
            raise UserError(
                f"{self._database.path} cannot be written; make room on the disk, end whatever has the file locked, or "
                "choose another --state-dir"
            )


def own_journal(database: Database, *, kept: bool) -> Journal | None:
    """The journal in a database, which only one process may write; None, and nothing left of it, where none is kept.

    Raises UserError when another process has it.
    """
    lock = Lock(database.path.parent, "journal")
    holder = lock.acquire(Holder(Service.ADMISSION.value, os.getpid(), ""))
    journal = Journal(database)
    if holder is None and not kept:
        journal.clear()
        lock.release()
    if holder is not None and kept:
        raise UserError(
            f"the journal in {database.path} belongs to process {holder.pid}; stop that stack, choose another --state-dir "
            "or set runtime.journal = false"
        )
    return journal if kept else None


def _writes(page: Page, clock: Clock) -> Iterator[Write]:
    if page.accepted:
        yield Write(_ACCEPT, [(each.number, journal_records.encode_request(each, clock)) for each in page.accepted])
    if page.fold:
        yield Write(_CLEAR, [()])
        yield Write(_PIECE, _pieces(page.parts, page.at_ns, clock))
    elif page.parts or page.counted:
        yield Write(_PAGE, [(journal_records.encode_parts(page.parts, page.at_ns, clock, page.counted),)])
    if page.forgotten:
        for statement in _FORGET:
            yield Write(statement, [(number,) for number in page.forgotten])
    if page.fold or not (page.parts or page.counted):
        yield Write(_SEEN, [(clock.wall(page.at_ns),)])
    if page.traffic:
        yield _rows_of(page.traffic)
    if page.doubts is not None:
        rows = [(*stream, each.group, each.failures_alone, each.output_tokens) for stream, each in page.doubts.items()]
        yield Write(_CLEAR_DOUBTS, [()])
        yield Write(_DOUBT, rows)
    if page.levels:
        yield Write(_BUCKET, [(tenant, level, clock.wall(page.at_ns)) for tenant, level in page.levels])


def _rows_of(traffic: Iterable[tuple[Account, Traffic]]) -> Write:
    return Write(_TRAFFIC, [(*account, journal_records.encode_traffic(each)) for account, each in traffic])


def _pieces(parts: Sequence[Part], at_ns: int, clock: Clock) -> list[tuple[int, int, bytes]]:
    return [(part.number, part.choice, journal_records.encode_parts((part,), at_ns, clock)) for part in parts]


def _unreadable(database: Database, error: Exception) -> str:
    return (
        f"what {database.path} says of unfinished requests cannot be read ({error}): move the file away, with those whose "
        "names begin alike, or start with runtime.journal = false; those requests are lost, and usage recorded in the file"
    )
