"""A stack whose journal was damaged while it was down says what is missing, keeps the damaged files, and serves."""

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

from e2e.harness import Stack, stack, wait_until

REQUESTS = 6


def ask(running: Stack, name: str, max_tokens: int) -> Any:
    """Leave a background request with the stack."""
    body = {"prompt": [5, 6, 7], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    headers = {"content-type": "application/json", "x-noria-background": "true", "idempotency-key": name}
    request = urllib.request.Request(running.url + "/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def kill_everything(running: Stack) -> None:
    pids = [each["pid"] for each in running.state().values()]
    os.kill(running.process.pid, signal.SIGSTOP)  # it must not start anything again meanwhile
    for pid in {*pids, running.process.pid}:
        os.kill(pid, signal.SIGKILL)
    running.process.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), 20, "everything is dead")


def test_requests_that_a_damaged_journal_lost_are_told_and_the_rest_is_served(tiny_model: Path) -> None:
    with stack(str(tiny_model), "--dtype", "float32") as running:
        for each in range(REQUESTS):
            ask(running, f"lost-{each}", 2000)
        kill_everything(running)
        database = running.runtime_dir / "state" / "noria.sqlite"
        Path(f"{database}-wal").unlink()
        running.start()
        running.wait_ready()
        journal = running.of("admission")["journal"]
        assert journal["requests_missing"] == REQUESTS and journal["last_stop"] == "killed"
        assert all((database.parent / name).exists() for name in journal["kept_aside"]) and journal["kept_aside"]
        assert running.look()["admission"]["journal"]["requests_missing"] == REQUESTS
        (line,) = [line for line in running.log().splitlines() if "requests are missing from the journal" in line]
        assert json.loads(line)["level"] == "error" and json.loads(line)["requests_missing"] == REQUESTS

        kept = ask(running, "kept", 200)["id"]
        kill_everything(running)
        running.start()
        running.wait_ready()
        journal = running.of("admission")["journal"]
        assert (journal["requests_missing"], journal["commits_missing"], journal["last_stop"]) == (0, 0, "killed")
        assert running.get(f"/v1/requests/{kept}")[0] == 200
