"""A journal that was damaged between two lives: what is missing is said, damaged files are kept, and the rest is served.

Each case damages copies of the files that a real process left, killed or after an orderly end.
"""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.journal_writer import STREAMS, token
from structlog.testing import capture_logs

from noria.services.admission.core.journaling import JournalContents
from noria.services.admission.storage.commit_count import commits_path
from noria.services.admission.storage.database import Sync
from noria.services.admission.storage.journal import Journal, open_journal
from noria.services.admission.storage.journal_records import WallClockOffset
from noria.services.admission.storage.usage_writer import UsageWriter
from noria.shared.errors import UserError

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
LOG, DATABASE, COMMITS = "-wal", "", "-commits"
Damage = Callable[[Path, random.Random], None]


@dataclass(frozen=True)
class Left:
    """What a writer left: folders with its files early and at its end, and how many tokens of each stream it had said were there."""

    early: Path
    late: Path
    said: list[int]


def write(folder: Path, *, orderly: bool) -> Left:
    """Run a writer: some hundreds of turns, past a fold, or, where it is killed, fewer than make it copy its log back."""
    path = folder / "state" / "noria.sqlite"
    command = [sys.executable, "-m", "fakes.journal_writer", str(path), *(["700"] if orderly else [])]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert writer.stdout is not None
    for _ in range(20):
        writer.stdout.readline()
    writer.send_signal(signal.SIGSTOP)
    while b"State:\tT" not in Path(f"/proc/{writer.pid}/status").read_bytes():
        time.sleep(0.001)
    early = Path(shutil.copytree(path.parent, folder / "early"))
    writer.send_signal(signal.SIGCONT)
    lines = [writer.stdout.readline() for _ in range(150)]
    if not orderly:
        writer.kill()
    lines += writer.stdout.readlines()
    writer.stdout.close()
    assert writer.wait() == (0 if orderly else -signal.SIGKILL)
    (last, *_) = [line for line in reversed(lines) if line.endswith(b"\n")]
    return Left(early, path.parent, [int(each) for each in last.split()])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return write(tmp_path_factory.mktemp("killed"), orderly=False)


@pytest.fixture(scope="module")
def orderly(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return write(tmp_path_factory.mktemp("orderly"), orderly=True)


def deleted(file: Path, draw: random.Random) -> None:
    file.unlink(missing_ok=True)


def emptied(file: Path, draw: random.Random) -> None:
    file.write_bytes(b"")


def cut(file: Path, draw: random.Random) -> None:
    os.truncate(file, draw.randrange(1, file.stat().st_size))


def flipped(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(20):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def garbled(file: Path, draw: random.Random) -> None:
    file.write_bytes(draw.randbytes(file.stat().st_size))


def garbled_within(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    start = draw.randrange(len(content))
    content[start : start + 5000] = draw.randbytes(len(content[start : start + 5000]))
    file.write_bytes(content)


@dataclass(frozen=True)
class Start:
    """What a start found and said."""

    journal: Journal
    recovered: JournalContents
    errors: list[dict[str, object]]

    @property
    def tells(self) -> bool:
        """Whether it said that anything is missing."""
        report = self.journal.report()
        amiss = (report["requests_missing"], report["commits_missing"], report["rows_unreadable"])
        assert amiss == (0, 0, 0) or self.errors, "what is missing is logged as an error"
        return amiss != (0, 0, 0)


@contextlib.contextmanager
def started(path: Path) -> Iterator[Start]:
    """The journal read as a new life reads it, and closed in order."""
    with capture_logs() as lines:
        database, journal = open_journal(path, kept=True)
        assert journal is not None
        UsageWriter(database)
        recovered = journal.read(time.monotonic_ns(), WallClockOffset.read())
    try:
        yield Start(journal, recovered, [line for line in lines if line["log_level"] == "error"])
    finally:
        database.close()


def copied(left: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(left, tmp_path / "state", dirs_exist_ok=True)) / "noria.sqlite"


def check(left: Left, path: Path, *, told: bool | None = None) -> Start:
    """Start, and see that what is served is right, that what is missing is told, and that the next start finds all in order."""
    before = {each.name: each.read_bytes() for each in path.parent.glob("noria.sqlite*")}
    with started(path) as start:
        served = {request.key.id: request.choices[0] for request in start.recovered.requests}
        for name, choice in served.items():
            ids = list(choice.ids)
            assert ids == [token(int(name[1:]), place) for place in range(len(ids))], "a wrong token is served"
            assert choice.text.length == len(ids)
        whole = len(served) == STREAMS and all(
            len(served[f"r{number}"].ids) >= least for number, least in enumerate(left.said)
        )
        assert whole or start.tells, "what is missing is not told"
        if told is not None:
            assert start.tells is told
        report = start.journal.report()
        missing = report["requests_missing"]
        assert missing is None or missing == STREAMS - len(served)
        if start.tells:
            names = [str(name) for name in report["kept_aside"]]  # type: ignore[attr-defined]  # a list of names
            kept = {(path.parent / name).read_bytes() for name in names}
            assert kept and all(before.get(f"{path.name}{each}", b"") in {*kept, b""} for each in (DATABASE, LOG))
            assert all((path.parent / name).stat().st_mode & 0o777 == 0o600 for name in names)
        result = start
    with started(path) as again:
        assert not again.tells and len(again.recovered.requests) == len(served)
        assert again.journal.report()["last_stop"] == "orderly"
    return result


@pytest.mark.parametrize("stop", ["killed", "orderly"])
def test_what_is_whole_is_served_whole_and_nothing_is_told(
    stop: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    left: Left = request.getfixturevalue(stop)
    start = check(left, copied(left.late, tmp_path), told=False)
    assert start.journal.findings.last_stop == stop and not start.journal.findings.set_aside


@pytest.mark.parametrize("damage", [deleted, emptied, cut, flipped, garbled])
def test_damage_to_the_log_of_a_killed_writer_is_told(damage: Damage, killed: Left, tmp_path: Path) -> None:
    path = copied(killed.late, tmp_path)
    damage(Path(f"{path}{LOG}"), random.Random(1))
    start = check(killed, path, told=True)
    assert start.journal.findings.last_stop == "killed"
    if damage is not cut and damage is not flipped:
        assert start.journal.findings.requests_missing == STREAMS


@pytest.mark.parametrize("stop", ["killed", "orderly"])
@pytest.mark.parametrize("damage", [deleted, emptied])
def test_a_database_that_is_gone_is_told_with_all_its_requests(
    damage: Damage, stop: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    left: Left = request.getfixturevalue(stop)
    path = copied(left.late, tmp_path)
    damage(path, random.Random(1))
    assert check(left, path, told=True).journal.findings.requests_missing == STREAMS


@pytest.mark.parametrize(("stop", "suffix"), [("killed", DATABASE), ("killed", LOG), ("orderly", DATABASE)])
@pytest.mark.parametrize("damage", [cut, flipped, garbled, garbled_within])
def test_whatever_is_hit_no_loss_is_silent_and_no_token_is_wrong(
    damage: Damage, suffix: str, stop: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    left: Left = request.getfixturevalue(stop)
    for seed in range(8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = copied(left.late, folder)
        damage(Path(f"{path}{suffix}"), random.Random(seed))
        check(left, path)


@pytest.mark.parametrize("stop", ["killed", "orderly"])
def test_an_older_copy_in_its_place_is_told(stop: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    left: Left = request.getfixturevalue(stop)
    path = copied(left.late, tmp_path)
    for suffix in (DATABASE, LOG):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
        shutil.copy(left.early / f"{path.name}{suffix}", f"{path}{suffix}")
    start = check(left, path, told=True)
    assert start.journal.findings.requests_missing == 0
    assert (start.journal.findings.commits_missing or 0) >= 100


def test_another_stacks_journal_in_its_place_is_told(killed: Left, orderly: Left, tmp_path: Path) -> None:
    path = copied(killed.late, tmp_path)
    Path(f"{path}{LOG}").unlink()
    shutil.copy(orderly.late / path.name, path)
    with started(path) as start:
        assert start.tells and start.journal.findings.requests_missing == STREAMS


@pytest.mark.parametrize("damage", [deleted, emptied, flipped, garbled])
def test_without_the_count_everything_is_served_and_the_doubt_is_told(
    damage: Damage, killed: Left, tmp_path: Path
) -> None:
    path = copied(killed.late, tmp_path)
    damage(commits_path(path), random.Random(1))
    with started(path) as start:
        assert len(start.recovered.requests) == STREAMS
        assert start.journal.findings.requests_missing in (None, 0)
        assert start.journal.findings.commits_missing in (None, 0)
        assert start.journal.findings.last_stop == "unknown"
    with started(path) as again:
        assert not again.tells and again.journal.findings.last_stop == "orderly"


def test_a_count_that_lags_behind_is_no_loss(killed: Left, tmp_path: Path) -> None:
    path = copied(killed.late, tmp_path)
    shutil.copy(commits_path(killed.early / path.name), commits_path(path))
    check(killed, path, told=False)


@pytest.mark.parametrize("number", [0, 3, 99])
@pytest.mark.parametrize("kept", [True, False])
def test_a_format_that_is_not_read_is_refused_by_name_and_left_alone(
    number: int, *, kept: bool, tmp_path: Path
) -> None:
    path = tmp_path / "noria.sqlite"
    open_journal(path, kept=True)[0].close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE journal SET format = ?", (number,))
        connection.commit()
    content = path.read_bytes()
    with pytest.raises(UserError, match=f"format {number}; this version reads formats 1 to 2") as raised:
        open_journal(path, kept=kept)
    assert str(path) in str(raised.value) and path.read_bytes() == content


def test_each_commit_is_counted_in_both_places(tmp_path: Path) -> None:
    path = tmp_path / "noria.sqlite"
    database, _ = open_journal(path, kept=True)
    before = database.commit_counts.commits
    for _ in range(5):
        assert database.commit([])
    assert database.read("SELECT commits FROM journal") == [(before + 5,)]
    database.close()


@pytest.mark.parametrize(("sync", "level"), [("normal", 1), ("full", 2)])
def test_a_commit_waits_for_the_disk_where_that_is_asked_for(sync: Sync, level: int, tmp_path: Path) -> None:
    database, _ = open_journal(tmp_path / "noria.sqlite", kept=True, sync=sync)
    assert database.read("PRAGMA synchronous") == [(level,)]
    database.close()


def test_a_journal_that_is_given_up_leaves_no_count_behind(tmp_path: Path) -> None:
    path = tmp_path / "noria.sqlite"
    open_journal(path, kept=True)[0].close()
    open_journal(path, kept=False)[0].close()
    with started(path) as start:
        assert not start.tells and start.journal.findings.last_stop == "none"
