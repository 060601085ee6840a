"""The journal on a real disk: killed writers, files that are damaged or taken, and whose eyes it is for."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.journal_writer import STREAMS, token

from noria.services.admission.core.journaling import JournalContents
from noria.services.admission.storage.database import AdmissionDatabase, DatabaseWrite
from noria.services.admission.storage.journal import SCHEMA, Journal, open_journal
from noria.services.admission.storage.journal_records import WallClockOffset
from noria.services.admission.storage.usage_writer import TABLES as USAGE
from noria.shared.errors import UserError
from noria.shared.process.locks import Lock, LockRecord

TABLES = (*USAGE, *SCHEMA)
KILLS = 6
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "noria.sqlite"


def read(path: Path) -> JournalContents:
    database = AdmissionDatabase(path, TABLES)
    try:
        return Journal(database).read(time.monotonic_ns(), WallClockOffset.read())
    finally:
        database.close()


def test_whatever_a_killed_writer_said_is_on_record_is_there_whole_and_in_order(path: Path) -> None:
    draw = random.Random(3)
    said = [0] * STREAMS
    for _ in range(KILLS):
        command = [sys.executable, "-m", "fakes.journal_writer", str(path)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT)
        assert writer.stdout is not None
        for _ in range(draw.randint(1, 700)):
            line = writer.stdout.readline()
        writer.kill()
        line = (line + writer.stdout.read()).splitlines(keepends=True)[-1] if line else line
        writer.wait()
        writer.stdout.close()
        if line.endswith(b"\n"):
            said = [int(each) for each in line.split()]
        recovered = read(path)
        assert len(recovered.requests) == STREAMS
        for request, least in zip(recovered.requests, said, strict=True):
            (choice,) = request.choices
            number = int(request.key.id[1:])
            assert len(choice.ids) >= least, "less is there than was said"
            assert list(choice.ids) == [token(number, place) for place in range(len(choice.ids))]
            assert choice.text.length == len(choice.ids)
            assert recovered.asleep_ns < 60_000_000_000
        assert sum(each.accepted for each in recovered.class_totals.values()) == STREAMS


def test_the_file_and_what_lies_beside_it_are_the_owners_alone(path: Path) -> None:
    database = AdmissionDatabase(path, TABLES)
    Journal(database).clear()
    assert {each.stat().st_mode & 0o777 for each in path.parent.iterdir()} == {0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    database.close()


def test_a_damaged_file_is_named_with_what_to_do(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(UserError, match="move") as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_a_file_that_another_process_writes_is_named_with_what_to_do(path: Path) -> None:
    database = AdmissionDatabase(path, TABLES)
    other = AdmissionDatabase(path, TABLES)
    other._connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(UserError, match="--state-dir"):
        Journal(database).read(time.monotonic_ns(), WallClockOffset.read())
    other._connection.execute("ROLLBACK")
    other.close()
    database.close()


def test_a_journal_has_one_owner(path: Path) -> None:
    path.parent.mkdir()
    other = Lock(path.parent, "journal")
    assert other.acquire(LockRecord("admission", 4711, "")) is None
    with pytest.raises(UserError, match="4711"):
        open_journal(path, kept=True)
    database, journal = open_journal(path, kept=False)
    assert journal is None
    other.release()
    database.close()


def test_without_a_journal_nothing_of_an_earlier_one_is_left(path: Path) -> None:
    database = AdmissionDatabase(path, TABLES)
    database._connection.execute("INSERT INTO requests VALUES (1, x'93')")
    database.close()
    database, journal = open_journal(path, kept=False)
    assert journal is None and database.read("SELECT count(*) FROM requests") == [(0,)]
    database.close()


def test_the_databases_log_is_copied_back_and_used_again(path: Path) -> None:
    database, log = AdmissionDatabase(path, TABLES), Path(f"{path}-wal")
    page = DatabaseWrite("INSERT INTO pages (body) VALUES (?)", [(os.urandom(32_768),)])
    for _ in range(60):
        for _ in range(64):
            assert database.commit([page])
        assert database.commit([DatabaseWrite("DELETE FROM pages", [()])])
    assert log.stat().st_size < 80 * 1024 * 1024, "much more than is ever on record"
    database.close()
