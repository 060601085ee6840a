"""A gateway that is asked to leave finishes its open responses: for as long as it may, and without being taken for hung."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
from fakes.front_door import FrontDoor, Mail

from noria.proto.base import Service
from noria.proto.frontdoor import Generate
from noria.proto.lifecycle import State
from noria.shared.actor.endpoints import prepare_runtime_dir, public_mailbox
from noria.shared.actor.inspect import inspect
from noria.shared.config.config import RuntimeSettings

STREAM = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
SETTINGS = [(drain_s, hang_s) for drain_s in (0, 5, 60) for hang_s in (5, 15)]
# By so much a stream outlasts the watchdog, which looks twice a second.
BEYOND_S = 2.0
# So soon a gateway is gone once it need not wait any more, on a busy machine.
SOON_S = 10.0


class Leaving:
    """A gateway's process with one stream under way; everything in it is real but admission."""

    def __init__(self, folder: Path, drain_s: float, hang_s: float) -> None:
        self.drain_s, self.hang_s = drain_s, hang_s
        runtime = RuntimeSettings(dir=str(folder / "run"))
        prepare_runtime_dir(runtime)
        self._door = FrontDoor(public_mailbox(runtime), accepting).start()
        settings = {
            "http": {"address": "127.0.0.1:0", "drain_timeout_s": drain_s},
            "runtime": {"dir": runtime.dir, "hang_timeout_s": hang_s},
        }
        path = folder / "noria.json"
        path.write_bytes(msgspec.json.encode(settings))
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "noria.services.gateway", "--config", str(path)],
                stderr=log,
                env={name: value for name, value in os.environ.items() if not name.startswith("NORIA_")},
            )
        until(lambda: ready(runtime))
        self._port = listening_port(self._process.pid)

    def leave(self) -> tuple[bool, float, int]:
        """Ask the gateway to end under a stream that would take longer than it may hang.

        Returns whether the stream came to its end, how long the gateway stayed, and its exit status.
        """
        over = threading.Event()
        url = f"http://127.0.0.1:{self._port}/v1/chat/completions"
        with httpx.Client(timeout=60, trust_env=False) as client, client.stream("POST", url, json=STREAM) as response:
            mail = self._door.wait_for(Generate)
            assert isinstance(mail.body, Generate)
            name = mail.body.id
            lines = response.iter_lines()
            next(line for line in lines if "assistant" in line)
            self._process.send_signal(signal.SIGTERM)
            began_s = time.monotonic()

            def finish() -> None:
                if not over.wait(self.hang_s + BEYOND_S):
                    self._door.say(mail.client, name, "the", " rest")
                    self._door.finish(mail.client, name, 2)

            finisher = threading.Thread(target=finish)
            finisher.start()
            rest = ""
            with contextlib.suppress(httpx.TransportError):
                for line in lines:
                    rest += line
            over.set()
            finisher.join()
        status = self._process.wait(60)
        return "rest" in rest and rest.endswith("data: [DONE]"), time.monotonic() - began_s, status

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._door.stop()


def accepting(door: FrontDoor, mail: Mail) -> None:
    if isinstance(mail.body, Generate):
        door.accept(mail)


def ready(runtime: RuntimeSettings) -> bool:
    found = inspect(runtime, Service.GATEWAY, 0.5)
    return found is not None and found.state is State.READY


def listening_port(pid: int) -> int:
    """The TCP port at which a process listens."""
    sockets = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError(f"process {pid} listens nowhere")


def until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_open_responses_may_finish_for_the_drains_time_however_soon_a_process_is_taken_for_hung(tmp_path: Path) -> None:
    gateways: list[Leaving] = []
    try:
        for number, (drain_s, hang_s) in enumerate(SETTINGS):
            folder = tmp_path / str(number)
            folder.mkdir()
            gateways.append(Leaving(folder, drain_s, hang_s))
        with ThreadPoolExecutor(len(gateways)) as threads:
            outcomes = list(threads.map(Leaving.leave, gateways))
    finally:
        for gateway in gateways:
            gateway.close()
    for gateway, (whole, stayed_s, status) in zip(gateways, outcomes, strict=True):
        said = f"drain {gateway.drain_s} s, hang {gateway.hang_s} s: {stayed_s:.1f} s\n{gateway.log.read_text()}"
        wanted_s = gateway.hang_s + BEYOND_S
        assert status == 0, said
        assert whole == (gateway.drain_s > wanted_s), said
        assert min(gateway.drain_s, wanted_s) <= stayed_s < min(gateway.drain_s, wanted_s) + SOON_S, said
