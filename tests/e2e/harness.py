"""Starts a real stack as a user does: `noria up` in a folder and on a port of its own."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from noria.proto.base import Service
from noria.shared.actor.inspect import inspect
from noria.shared.config.config import RuntimeSettings
from noria.shared.process.locks import living_holder

NORIA = Path(sys.executable).parent / "noria"
# For stacks in which a service is held: so long it may be silent before it is taken for gone, or for hung.
LENIENT = {"NORIA_RUNTIME_PEER_TIMEOUT_S": "120", "NORIA_RUNTIME_HANG_TIMEOUT_S": "120"}
IDLE_COUNTS = {
    "admission": ("requests", "streams", "tokenizing", "attachments"),
    "scheduler": ("waiting", "running", "finished", "blocks_used", "slots_used", "in_flight"),
    "executor": ("slots", "queued_plans"),
    "detokenizer": ("streams",),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)


class Stack:
    """A running `noria up` with its log in a file. api_key: an operator's key, for requests that need one."""

    def __init__(
        self, model: str, *arguments: str, environment: Mapping[str, str] | None = None, api_key: str = ""
    ) -> None:
        self.api_key = api_key
        self.folder = Path(tempfile.mkdtemp(prefix="noria-e2e-"))
        self.runtime_dir = self.folder / "run"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = self.folder / "log"
        self.command = [
            str(NORIA), "up", "--model", model, "--http", f"127.0.0.1:{self.port}",
            "--runtime-dir", str(self.runtime_dir), *arguments,
        ]  # fmt: skip
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NORIA_")}
        self.environment = {**clean, **(environment or {})}
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """Run the command (again), at the end of the same log."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )
        return self.process

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.runtime_dir}/public.sock"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_ready(self, timeout_s: float = 180.0) -> "Stack":
        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the stack ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            with contextlib.suppress(OSError):
                # Requests are served a moment before the supervisor has heard from everybody.
                return self.ready() and (self.look()["supervisor"] or {}).get("state") == "ready"
            return False

        try:
            wait_until(ready, timeout_s, "stack ready")
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None
        return self

    def ready(self) -> bool:
        """Return whether the gateway reports that the stack is ready."""
        with contextlib.suppress(OSError):
            return bool(self.get("/ready")[0] == 200)
        return False

    def get(self, path: str) -> tuple[int, Any]:
        try:
            headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
            request = urllib.request.Request(self.url + path, headers=headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def look(self) -> dict[str, Any]:
        """Return each service's state from `/debug/state`; None for services that did not answer in time."""
        status, content = self.get("/debug/state")
        assert status == 200
        services = content.get("services", content)
        assert isinstance(services, dict)
        return services

    def state(self) -> dict[str, dict[str, Any]]:
        """Return each service's state once all have answered, which may take several tries on a busy machine."""
        found: dict[str, dict[str, Any]] = {}
        wait_until(lambda: (found.update(self.look()), all(found.values()))[1], 60, "every service answers")
        return found

    def of(self, service: str) -> dict[str, Any]:
        """Return the state of one service, even when others do not answer."""
        settings = RuntimeSettings(dir=str(self.runtime_dir))
        for _ in range(6):
            snapshot = inspect(settings, Service(service), 10.0)
            if snapshot is not None:
                return {"state": snapshot.state.value, **msgspec.json.decode(snapshot.json, type=dict[str, Any])}
        raise AssertionError(f"the {service} does not answer")

    def line(self, *arguments: str) -> list[str]:
        """Return a `noria` command line with this stack's runtime folder."""
        return [str(NORIA), *arguments, "--runtime-dir", str(self.runtime_dir)]

    def noria(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a `noria` command on this stack to its end. environment: variables in addition to the stack's own."""
        return subprocess.run(
            self.line(*arguments),
            capture_output=True,
            text=True,
            timeout=280,
            env={**self.environment, **environment},
        )

    def ps(self) -> list[dict[str, Any]]:
        done = self.noria("ps", "--json")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)
        assert isinstance(rows, list)
        return rows

    def pids(self) -> dict[str, int]:
        """Return the pids of running services. A service that is about to restart has none: kill(0) would kill the whole group."""
        holders = {each.value: living_holder(self.runtime_dir, each.value) for each in Service}
        return {name: holder.pid for name, holder in holders.items() if holder is not None and holder.pid > 0}

    @contextlib.contextmanager
    def held(self, service: str = "executor") -> Iterator[None]:
        """Stop a service (SIGSTOP) while the body runs; without the executor nothing is computed, so running requests stay so.

        For long only on a stack that is `LENIENT`. It goes on afterwards, unless it was killed meanwhile.
        """
        pid = self.pids()[service]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def busy_counts(self) -> dict[str, int]:
        """Return every count that must be zero without requests, and is not."""
        state = self.state()
        return {
            f"{service}.{key}": state[service][key]
            for service, keys in IDLE_COUNTS.items()
            for key in keys
            if state[service][key] != 0
        }

    def wait_idle(self, timeout_s: float = 120.0) -> None:
        left: dict[str, int] = {}

        def idle() -> bool:
            nonlocal left
            left = self.busy_counts()
            return not left

        try:
            wait_until(idle, timeout_s, "idle")
        except AssertionError:
            raise AssertionError(f"still alive: {left}\n{self.log()[-3000:]}") from None

    def stop(self, timeout_s: float = 90.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        return self.process.returncode

    def discard(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def stack(
    model: str, *arguments: str, environment: Mapping[str, str] | None = None, api_key: str = ""
) -> Iterator[Stack]:
    running = Stack(model, *arguments, environment=environment, api_key=api_key)
    try:
        yield running.wait_ready()
    finally:
        running.discard()
