"""Who holds a lock, and whether that is the process that signed it."""

import os
import select
import subprocess
import sys
from pathlib import Path

from noria.shared.process.locks import Lock, LockRecord, living_holder, lock_owner

HOLDING = """
import os, pathlib, sys
import setproctitle
from noria.shared.process.locks import Lock, LockRecord
folder, title, pid = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
setproctitle.setproctitle(title)
Lock(folder, "scheduler").acquire(LockRecord("scheduler", pid or os.getpid(), "1"))
print(flush=True)
sys.stdin.read()
"""


def holding(folder: Path, title: str = "noria: scheduler", signed_as: int = 0) -> "subprocess.Popen[bytes]":
    """Another process that holds the lock, perhaps with a wrong pid in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder), title, str(signed_as)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


def readable(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_service_that_holds_its_lock_is_found_and_its_end_is_seen(tmp_path: Path) -> None:
    process = holding(tmp_path)
    found = lock_owner(tmp_path, "scheduler")
    assert found is not None
    assert found.holder.pid == process.pid
    assert not readable(found.descriptor)
    end(process)
    assert readable(found.descriptor)
    os.close(found.descriptor)
    assert lock_owner(tmp_path, "scheduler") is None


def test_a_dead_holders_signature_finds_nobody(tmp_path: Path) -> None:
    (tmp_path / "scheduler.lock").write_text(f'{{"service":"scheduler","pid":{os.getpid()},"incarnation":"1"}}')
    assert living_holder(tmp_path, "scheduler") is None
    assert lock_owner(tmp_path, "scheduler") is None


def test_an_innocent_process_that_has_the_pid_in_the_lock_is_not_taken_for_its_holder(tmp_path: Path) -> None:
    innocent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = holding(tmp_path, signed_as=innocent.pid)
    assert living_holder(tmp_path, "scheduler") is not None
    assert lock_owner(tmp_path, "scheduler") is None
    end(process)
    end(innocent)


def test_another_kind_of_process_is_not_taken_for_a_service(tmp_path: Path) -> None:
    process = holding(tmp_path, title="noria: schedulers' friend")
    assert lock_owner(tmp_path, "scheduler") is None
    end(process)


def test_a_lock_that_is_given_back_is_empty_and_free(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "scheduler")
    assert lock.acquire(LockRecord("scheduler", os.getpid(), "1")) is None
    lock.release()
    assert (tmp_path / "scheduler.lock").read_bytes() == b""
    lock.release()
    assert lock_owner(tmp_path, "scheduler") is None
