"""Runs one engine's server as a child process: starts it, waits for it, measures its memory, and stops it."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engines import Engine, Place

READY_S: Final = 600.0
_POLL_S: Final = 0.2
STOP_S: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


class StartError(Exception):
    """A server that did not come up; the message holds the end of its log."""


class Server:
    """A running server."""

    def __init__(self, engine: Engine, place: Place, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self.start_s = 0.0
        self._log = log
        start = engine.start(place, port)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("NORIA_", "OMP_", "MKL_"))}
        if not engine.ours:
            clean.pop("PYTHONPATH", None)
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                start.command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**clean, **start.environment},
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  # there are no threads here
            )

    def wait_ready(self) -> None:
        """Wait until the server generates. Raises StartError."""
        began = time.monotonic()
        while time.monotonic() - began < READY_S:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                if self._generates():
                    self.start_s = time.monotonic() - began
                    return
            time.sleep(_POLL_S)
        raise StartError(f"{self.process.args[0]} did not come up:\n{self._log.read_text(errors='replace')[-3000:]}")

    def memory_gb(self) -> float:
        """Return the memory of all its processes in GB, each shared page once."""
        total_kb = 0
        for process in _family(self.process.pid):
            with contextlib.suppress(OSError, StopIteration):
                rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
                total_kb += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        return total_kb / 1e6

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop the server: SIGTERM first, SIGKILL after `timeout_s`."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _generates(self) -> bool:
        """Return whether the server generates a token: some answer before their model is loaded."""
        body = b'{"model": "%b", "prompt": "a", "max_tokens": 1, "stream": true, "temperature": 0}' % self._model()
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body, {"content-type": "application/json", "accept": "text/event-stream"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return b"data:" in answer.read()

    def _model(self) -> bytes:
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=5) as answer:
            return str(json.loads(answer.read())["data"][0]["id"]).encode()


def _family(first: int) -> set[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {first}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _die_with_parent() -> None:
    """Make the kernel end this process when its parent dies: a server left over would disturb the next measures."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def serving(engine: Engine, place: Place, log: Path) -> Iterator[Server]:
    """Run an engine's server while the body runs; yields it when it is ready."""
    server = Server(engine, place, log)
    timeout_s = STOP_S
    try:
        server.wait_ready()
        yield server
    except (SystemExit, KeyboardInterrupt):
        timeout_s = 3.0  # the run was interrupted: do not wait long
        raise
    finally:
        server.stop(timeout_s)
