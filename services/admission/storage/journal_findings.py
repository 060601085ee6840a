"""Examines the files of a journal at a start, before anything is written to them, and counts what is missing.

Compares the database with the file that counts its commits, keeps damaged files aside under names with the time, and copies
what can still be read of a database that SQLite calls malformed into a new one. Only the process that owns the journal may do so.
"""

import contextlib
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from noria.proto.base import Service
from noria.services.admission.core.tenants.class_totals import UsageKey
from noria.services.admission.storage import journal_records
from noria.services.admission.storage.commit_count import CommitCounts, LastCommitRecord, commits_path, read_commits
from noria.services.admission.storage.journal_records import WallClockOffset
from noria.shared.errors import UserError
from noria.shared.telemetry.log import logger

FORMAT: Final = 2
FORMAT_OLDEST: Final = 1
_NOTHING: Final = CommitCounts()
_NEW: Final = "-new"
_NO_CLOCK: Final = WallClockOffset(0)
_ENVIRONMENT: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


@dataclass(frozen=True, slots=True)
class JournalFindings:
    """What a start found. identity and commit_counts: those that the journal continues with.

    requests_missing: accepted requests that are lost, at most; commits_missing: transactions that are. None where that cannot be
    known, because what would say it is lost or damaged too. last_stop: `orderly`, `killed`, `none` for a new journal, or `unknown`.
    set_aside: names of the damaged files that were kept at this start.
    """

    identity: bytes = b""
    commit_counts: CommitCounts = _NOTHING
    requests_missing: int | None = 0
    commits_missing: int | None = 0
    last_stop: str = "none"
    set_aside: tuple[str, ...] = ()


@dataclass(slots=True)
class _DatabaseFindings:
    """One database as it lies there. problem: why SQLite cannot use it. unreadable: rows whose bodies are damaged."""

    identity: bytes = b""
    commit_counts: CommitCounts = _NOTHING
    problem: str = ""
    unreadable: int = 0
    readable_requests: int = 0


def examine(path: Path, schema: Sequence[str]) -> JournalFindings:
    """Look at a journal's files, keep aside what is damaged, and leave a database there that can be used.

    Raises UserError when the journal is of a format that this version does not read, or the files cannot be had.
    """
    last_commit, commit_file_problem = _read_commit_record(path)  # before the database, which is written first
    check_format(path)
    found = _inspect(path)
    if (
        found.problem
        or found.unreadable
        or commit_file_problem
        or (last_commit is not None and _has_lost_commits(found, last_commit))
    ):
        return _repair(path, schema, found, last_commit, commit_file_problem)
    known = last_commit is not None or not found.commit_counts.commits
    if not known:
        logger(Service.ADMISSION.value).warning("commits file is missing", path=str(commits_path(path)))
    return JournalFindings(
        found.identity or secrets.token_bytes(16),
        found.commit_counts,
        requests_missing=0 if known else None,
        commits_missing=0 if known else None,
        last_stop=_last_stop(found, last_commit),
    )


def check_format(path: Path) -> None:
    """Raises UserError when the journal at `path` is of a format that this version does not read."""
    if not _is_there(path):
        return
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(_open(path)) as connection:
        for (number,) in connection.execute("SELECT format FROM journal"):
            if isinstance(number, int) and not FORMAT_OLDEST <= number <= FORMAT:
                raise UserError(
                    f"the journal in {path} has format {number}; this version reads formats {FORMAT_OLDEST} to {FORMAT}: "
                    "start the version that wrote it, or choose another --state-dir"
                )


def kept_aside(path: Path) -> list[str]:
    """Names of all damaged files that starts of this journal have kept, oldest first."""
    return sorted(each.name for each in path.parent.glob(f"{path.name}.damaged-*"))


def _repair(
    path: Path,
    schema: Sequence[str],
    found: _DatabaseFindings,
    last_commit: LastCommitRecord | None,
    commit_file_problem: str,
) -> JournalFindings:
    try:
        aside = _keep_aside(path, move=bool(found.problem))
        left = found
        if found.problem:
            _salvage(path.with_name(aside[0]), path, schema, last_commit)
            left = _inspect(path)
    except (OSError, sqlite3.Error) as error:
        raise UserError(
            f"what is damaged of the journal in {path} cannot be kept aside ({error}); make room on the disk, or choose another "
            "--state-dir"
        ) from error
    if last_commit is None:
        requests = commits = None
        if not (found.problem or commit_file_problem):
            requests, commits = found.commit_counts.held - found.readable_requests, 0
        went_on = left.commit_counts
    else:
        commits = (
            last_commit.commit_counts.commits
            if _is_other_database(found, last_commit)
            else max(last_commit.commit_counts.commits - found.commit_counts.commits, 0)
        )
        requests = (
            max(last_commit.commit_counts.held - left.readable_requests, 0)
            if found.problem
            else _requests_missing(found, last_commit)
        )
        went_on = CommitCounts(
            max(last_commit.commit_counts.commits, left.commit_counts.commits),
            max(last_commit.commit_counts.accepted, left.commit_counts.accepted),
            left.commit_counts.held,
        )
    findings = JournalFindings(
        left.identity or secrets.token_bytes(16),
        went_on,
        requests,
        commits,
        _last_stop(found, last_commit),
        tuple(aside),
    )
    logger(Service.ADMISSION.value).error(
        "requests are missing from the journal" if requests or requests is None else "the journal is damaged",
        path=str(path),
        requests_missing=requests,
        commits_missing=commits,
        rows_unreadable=found.unreadable,
        problem=found.problem or commit_file_problem,
        last_stop=findings.last_stop,
        kept_aside=list(aside),
    )
    return findings


def _read_commit_record(path: Path) -> tuple[LastCommitRecord | None, str]:
    try:
        return read_commits(commits_path(path)), ""
    except ValueError as error:
        return None, str(error)
    except OSError as error:
        raise UserError(
            f"cannot read {commits_path(path)}: {error.strerror}; free it or choose another --state-dir"
        ) from error


def _is_other_database(found: _DatabaseFindings, last_commit: LastCommitRecord) -> bool:
    """Whether the database is not the one that the file beside it counts, such as a new one in its place."""
    return found.identity != last_commit.identity


def _has_lost_commits(found: _DatabaseFindings, last_commit: LastCommitRecord) -> bool:
    return _is_other_database(found, last_commit) or found.commit_counts.commits < last_commit.commit_counts.commits


def _requests_missing(found: _DatabaseFindings, last_commit: LastCommitRecord) -> int:
    """How many requests are lost, at most: of those accepted since then some may have been forgotten, too."""
    if _is_other_database(found, last_commit):
        return last_commit.commit_counts.held
    lost = min(
        last_commit.commit_counts.held, max(last_commit.commit_counts.accepted - found.commit_counts.accepted, 0)
    )
    return lost + found.commit_counts.held - found.readable_requests


def _last_stop(found: _DatabaseFindings, last_commit: LastCommitRecord | None) -> str:
    if last_commit is not None:
        return "orderly" if last_commit.orderly else "killed"
    return "unknown" if found.commit_counts.commits or found.commit_counts.held or found.problem else "none"


def _inspect(path: Path) -> _DatabaseFindings:
    """Read everything that is there. Raises UserError when that fails for another reason than damage."""
    found = _DatabaseFindings()
    if not _is_there(path):
        return found
    try:
        with contextlib.closing(_open(path)) as connection:
            ((verdict,),) = connection.execute("PRAGMA quick_check(1)").fetchall()
            if verdict != "ok":
                found.problem = str(verdict)
                return found
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "requests" in tables:
                _read_bodies(connection, found)
            if "journal" in tables:
                for identity, commits, accepted in connection.execute(
                    "SELECT identity, commits, accepted FROM journal"
                ):
                    row = msgspec.convert((identity, commits, accepted), tuple[bytes, int, int])
                    found.identity, found.commit_counts = row[0], CommitCounts(row[1], row[2], found.commit_counts.held)
    except sqlite3.DatabaseError as error:
        if (error.sqlite_errorcode & 0xFF) in _ENVIRONMENT:
            raise UserError(
                f"cannot keep a database at {path}: {error}; free it or choose another --state-dir"
            ) from error
        found.problem = str(error)
    except msgspec.ValidationError as error:
        found.problem = str(error)
    return found


def _is_there(path: Path) -> bool:
    """Whether there is something in the database. SQLite deletes the log of an empty one as soon as it opens it."""
    return path.exists() and path.stat().st_size > 0


def _read_bodies(connection: sqlite3.Connection, found: _DatabaseFindings) -> None:
    for number, body in connection.execute("SELECT number, body FROM requests"):
        found.commit_counts = found.commit_counts._replace(held=found.commit_counts.held + 1)
        with _damage_counted(found):
            journal_records.decode_request(number, body, _NO_CLOCK)
            found.readable_requests += 1
    for table in ("pieces", "pages"):
        for (body,) in connection.execute(f"SELECT body FROM {table}"):  # noqa: S608 - our own names
            with _damage_counted(found):
                journal_records.decode_parts(body, _NO_CLOCK)
    for tenant, name, body in connection.execute("SELECT tenant, class, body FROM traffic"):
        with _damage_counted(found):
            journal_records.decode_class_totals(UsageKey(tenant, name), body)


@contextlib.contextmanager
def _damage_counted(found: _DatabaseFindings) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError):  # MsgspecError is a ValueError; a body may have become another type
        found.unreadable += 1


def _keep_aside(path: Path, *, move: bool) -> list[str]:
    """Copy the files, or move them; returns their new names, the database's first."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = path.with_name(f"{path.name}.damaged-{stamp}")
    again = 1
    while any(path.parent.glob(f"{target.name}*")):
        again += 1
        target = path.with_name(f"{path.name}.damaged-{stamp}-{again}")
    kept = []
    for suffix in ("", "-wal", "-commits"):
        source, copy = Path(f"{path}{suffix}"), Path(f"{target}{suffix}")
        if not source.exists():
            continue
        if move and suffix != "-commits":
            source.replace(copy)
        else:
            with (
                source.open("rb") as read,
                os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as write,
            ):
                shutil.copyfileobj(read, write)
        kept.append(copy.name)
    if move:
        Path(f"{path}-shm").unlink(missing_ok=True)
    return kept


def _salvage(damaged: Path, path: Path, schema: Sequence[str], last_commit: LastCommitRecord | None) -> None:
    """Copy all rows that can be read into a new database, which is put in place when it is whole."""
    new = Path(f"{path}{_NEW}")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT, 0o600))
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as target:
        for statement in schema:
            target.execute(statement)
        tables = [name for (name,) in target.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        target.execute("BEGIN")
        with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(_open(damaged)) as source:
            for table in tables:
                _copy_rows(source, target, table)
        if last_commit is not None and not target.execute("SELECT 1 FROM journal").fetchall():
            row = (FORMAT, last_commit.identity, last_commit.commit_counts.commits, last_commit.commit_counts.accepted)
            target.execute("INSERT INTO journal VALUES (1, ?, ?, ?, ?)", row)
        target.execute("COMMIT")
    new.replace(path)


def _copy_rows(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
    columns = target.execute(f"PRAGMA table_info({table})").fetchall()
    keys = [str(name) for _, name, *_, key in columns if key] or ["rowid"]
    places = ", ".join("?" for _ in columns)
    # A damaged page stops a walk; what lies behind it is reached from the other end.
    for way in ("ASC", "DESC"):
        order = ", ".join(f"{key} {way}" for key in keys)
        try:
            for row in source.execute(f"SELECT * FROM {table} ORDER BY {order}"):  # noqa: S608 - our own names
                with contextlib.suppress(sqlite3.IntegrityError, sqlite3.InterfaceError):
                    target.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row)  # noqa: S608 - as above
        except sqlite3.DatabaseError:
            continue
        return


def _open(path: Path) -> sqlite3.Connection:
    """Open for reading: the files stay as they are, but for SQLite's index of the log, which is rebuilt."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection
