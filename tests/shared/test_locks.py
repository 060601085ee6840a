"""Who owns what in a runtime folder."""

import subprocess
import sys
from pathlib import Path

from noria.shared.process.locks import Lock, LockRecord, living_holder, read_holder

OURS = LockRecord("scheduler", 7, "ab", "127.0.0.1:8000")


def test_a_free_lock_is_taken_and_signed(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "scheduler")
    assert lock.acquire(OURS) is None
    assert living_holder(tmp_path, "scheduler") == OURS
    assert (tmp_path / "scheduler.lock").stat().st_mode & 0o777 == 0o600
    lock.release()


def test_a_lock_that_is_held_names_its_holder(tmp_path: Path) -> None:
    first = Lock(tmp_path, "scheduler")
    assert first.acquire(OURS) is None
    assert Lock(tmp_path, "scheduler").acquire(LockRecord("scheduler", 8, "")) == OURS
    first.release()


def test_a_released_lock_can_be_taken_again_and_names_nobody(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "scheduler")
    lock.acquire(OURS)
    lock.release()
    assert living_holder(tmp_path, "scheduler") is None
    assert read_holder(tmp_path / "scheduler.lock") is None
    assert lock.acquire(OURS) is None
    lock.release()


def test_the_lock_of_a_killed_process_is_free_though_it_is_still_signed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from noria.shared.process.locks import LockRecord, Lock\n"
        "assert Lock(Path(sys.argv[1]), 'executor').acquire(LockRecord('executor', os.getpid(), '')) is None\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert process.returncode == -9
    assert read_holder(tmp_path / "executor.lock") is not None
    assert living_holder(tmp_path, "executor") is None


def test_locks_in_different_folders_and_of_different_names_are_independent(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    locks = [Lock(tmp_path, "scheduler"), Lock(tmp_path, "executor"), Lock(tmp_path / "other", "scheduler")]
    assert [lock.acquire(OURS) for lock in locks] == [None, None, None]
    for lock in locks:
        lock.release()


def test_nobody_holds_a_lock_that_was_never_made(tmp_path: Path) -> None:
    assert living_holder(tmp_path, "gateway") is None
    assert living_holder(tmp_path / "missing", "gateway") is None


def test_a_holder_may_say_more_of_itself_later(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "scheduler")
    assert lock.acquire(LockRecord("a rather long name", 12345, "")) is None
    lock.sign(LockRecord("short", 1, "abc"))
    assert living_holder(tmp_path, "scheduler") == LockRecord("short", 1, "abc")
    lock.release()
