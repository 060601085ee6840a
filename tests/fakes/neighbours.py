"""The scheduler's neighbours as a test plays them, around a scheduler that really runs."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from noria.proto.base import Service
from noria.proto.lifecycle import Hello, Inspect, Snapshot, State
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.state.scheduler_view import SchedulerView
from noria.services.scheduler.observe.event_log import EventLog
from noria.services.scheduler.service import SchedulerService
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.inspect import inspect
from noria.shared.actor.mailbox import Mailbox
from noria.shared.config.config import RuntimeSettings, TelemetrySettings
from noria.shared.telemetry.telemetry import Telemetry

PEERS = (Service.ADMISSION, Service.EXECUTOR, Service.DETOKENIZER)
PATIENCE_S = 60.0
Kind = TypeVar("Kind", bound=msgspec.Struct)


class Peer:
    """A service that the test plays: it greets the scheduler and keeps what it hears.

    tells: what it answers inspectors who ask about something; nothing is known of anything else.
    """

    def __init__(self, service: Service, settings: RuntimeSettings) -> None:
        to = {Service.SCHEDULER: mailbox(settings, Service.SCHEDULER)}
        self.mailbox = Mailbox(service, mailbox(settings, service), to, settings)
        self.heard: list[msgspec.Struct] = []
        self.tells: dict[str, dict[str, list[int]]] = {}

    def join(self) -> None:
        """Greet until the scheduler has taken note of it."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.mailbox.links[Service.SCHEDULER].knows_us:
            assert time.monotonic() < deadline, "the scheduler does not greet"
            self.mailbox.try_send(Service.SCHEDULER, Hello(1, State.READY))
            self.listen(20)

    def send(self, body: msgspec.Struct) -> None:
        assert self.mailbox.send(Service.SCHEDULER, body)

    def listen(self, timeout_ms: int) -> None:
        self.mailbox.router.poll(timeout_ms, zmq.POLLIN)
        for identity, header, body in self.mailbox.receive(256):
            if isinstance(body, Inspect):
                told = msgspec.json.encode(self.tells.get(body.about, {}))
                self.mailbox.answer_inspector(identity, Snapshot(self.mailbox.service.value, 0, State.READY, told))
            elif isinstance(body, Hello):
                # As an actor does it: whoever asks is answered each time, for an answer may be lost while it connects.
                if self.mailbox.accept_hello(header, answer=body.answer) or not body.answer:
                    self.mailbox.try_send(Service.SCHEDULER, Hello(1, State.READY, answer=True))
            elif self.mailbox.is_current(header):
                self.heard.append(body)

    def wait_for(self, kind: type[Kind]) -> Kind:
        """The next message of a kind; earlier ones of other kinds are dropped."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            while self.heard:
                body = self.heard.pop(0)
                if isinstance(body, kind):
                    return body
            self.listen(100)
        raise AssertionError(f"no {kind.__name__} came")


@contextmanager
def running_scheduler(
    folder: Path,
    options: CoreSettings,
    event_log: Callable[[SchedulerView], EventLog] | None = None,
    tokens_interval_ns: int = 0,
) -> Iterator[tuple[RuntimeSettings, dict[Service, Peer]]]:
    """A running scheduler and its three peers, which have not greeted yet."""
    settings = RuntimeSettings(dir=str(folder / "run"))
    prepare_runtime_dir(settings)
    endpoints = {peer: mailbox(settings, peer) for peer in PEERS}
    post = Mailbox(Service.SCHEDULER, mailbox(settings, Service.SCHEDULER), endpoints, settings)
    actor = Actor(post, settings)
    telemetry = Telemetry(Service.SCHEDULER, post.incarnation, TelemetrySettings())
    service = SchedulerService(actor, telemetry, options, event_log, tokens_interval_ns)
    thread = threading.Thread(target=actor.run, args=(service,))
    peers = {peer: Peer(peer, settings) for peer in PEERS}
    thread.start()
    try:
        yield settings, peers
    finally:
        actor.stop()
        thread.join(PATIENCE_S)
        for peer in peers.values():
            peer.mailbox.close()


def scheduler_state(settings: RuntimeSettings) -> dict[str, object]:
    snapshot = inspect(settings, Service.SCHEDULER, PATIENCE_S)
    assert snapshot is not None
    decoded = msgspec.json.decode(snapshot.json)
    assert isinstance(decoded, dict)
    return decoded
