"""Asking a mailbox for its state."""

import asyncio
import threading
from pathlib import Path

import msgspec
from fakes.peers import wait_for

from noria.proto.base import Header, Service
from noria.proto.lifecycle import State
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.inspect import inspect, inspect_all, inspect_all_async
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import RuntimeSettings


class IdleShell:
    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None: ...
    def joined(self, peer: Service) -> None: ...
    def lost(self, peer: Service) -> None: ...
    def congested(self, peer: Service) -> None: ...
    def drain(self, timeout_ms: int) -> None: ...
    def close(self) -> None: ...

    def advance(self, now_ns: int) -> int | None:
        return None

    def state(self) -> State:
        return State.READY

    def progress(self) -> tuple[int, bool]:
        return 0, False

    def snapshot(self) -> dict[str, object]:
        return {"waiting": 3}


def test_an_inspector_reads_the_state_of_a_service_and_misses_those_that_are_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = RuntimeSettings(dir=str(folder))
    prepare_runtime_dir(settings)
    actor = Actor(Mailbox(Service.SCHEDULER, mailbox(settings, Service.SCHEDULER), {}, settings), settings)
    thread = threading.Thread(target=actor.run, args=(IdleShell(),))
    thread.start()
    try:
        snapshot = inspect(settings, Service.SCHEDULER, 60)
        assert snapshot is not None
        assert snapshot.state is State.READY
        assert msgspec.json.decode(snapshot.json)["waiting"] == 3

        # Those that are not there are waited for; on a busy machine the one that is may take longer than that.
        wait_for(lambda: list(inspect_all(settings, timeout_s=0.3)) == [Service.SCHEDULER])
        wait_for(lambda: list(asyncio.run(inspect_all_async(settings, timeout_s=0.3))) == [Service.SCHEDULER])
        assert inspect(settings, Service.EXECUTOR, 0.05) is None
    finally:
        actor.stop()
        thread.join(60)
