"""A real actor in a thread with a recording shell, and a peer of bare sockets that sends whatever a test wants."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq

from noria.proto.base import Header, Service, Stream
from noria.proto.lifecycle import Hello, State
from noria.proto.output import Gap, Progress
from noria.proto.wire import Codec, every_kind
from noria.shared.actor.actor import Actor
from noria.shared.actor.endpoints import mailbox, prepare_runtime_dir
from noria.shared.actor.mailbox import Mailbox, draw_incarnation
from noria.shared.config.config import RuntimeSettings

CODEC = Codec(every_kind())
Socket = zmq.Socket[bytes]


def wait_for(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Poll until a condition is true, and return its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)
    return value


class Recorder:
    """A shell that records everything it receives, and sends what a test queues."""

    def __init__(self) -> None:
        self.actor: Actor | None = None
        self.received: list[msgspec.Struct] = []
        self.joins: list[Service] = []
        self.losses: list[Service] = []
        self.refused: list[Service] = []
        self.at_join: Callable[[Service], list[msgspec.Struct]] = lambda peer: []
        self.to_send: list[tuple[Service, msgspec.Struct]] = []
        self.sent: list[bool] = []
        self.turns = 0
        self.drained: list[int] = []
        self.present = State.READY
        self.closed = threading.Event()

    @property
    def incarnation(self) -> int:
        """The incarnation of its mailbox."""
        assert self.actor is not None
        return self.actor.mailbox.incarnation

    def counts(self) -> dict[str, int]:
        """The counters of its mailbox."""
        assert self.actor is not None
        return self.actor.mailbox.counts()

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        self.received.append(body)

    def joined(self, peer: Service) -> None:
        self.joins.append(peer)
        for body in self.at_join(peer):
            assert self.actor is not None
            self.actor.send(self, peer, body)

    def lost(self, peer: Service) -> None:
        self.losses.append(peer)

    def congested(self, peer: Service) -> None:
        self.refused.append(peer)

    def advance(self, now_ns: int) -> int | None:
        self.turns += 1
        assert self.actor is not None
        while self.to_send:
            peer, body = self.to_send.pop(0)
            self.sent.append(self.actor.send(self, peer, body))
        return None

    def state(self) -> State:
        return self.present

    def progress(self) -> tuple[int, bool]:
        return 0, False

    def snapshot(self) -> dict[str, Any]:
        return {"received": len(self.received)}

    def drain(self, timeout_ms: int) -> None:
        self.drained.append(timeout_ms)

    def close(self) -> None:
        self.closed.set()


@contextlib.contextmanager
def running(settings: RuntimeSettings, service: Service, *peers: Service) -> Iterator[Recorder]:
    """Run a recorder on an actor of its own, linked to the named peers."""
    shell = Recorder()
    prepare_runtime_dir(settings)
    post = Mailbox(service, mailbox(settings, service), {peer: mailbox(settings, peer) for peer in peers}, settings)
    shell.actor = Actor(post, settings)
    thread = threading.Thread(target=shell.actor.run, args=(shell,), daemon=True)
    thread.start()
    try:
        yield shell
    finally:
        shell.actor.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert shell.closed.is_set()


class BarePeer:
    """A peer of bare sockets, without the protocol's rules: it writes to one mailbox and, once bound, reads its own."""

    def __init__(self, settings: RuntimeSettings, service: Service, to: Service, incarnation: int = 0) -> None:
        self.service = service
        self.incarnation = incarnation or draw_incarnation()
        self._endpoint = mailbox(settings, service)
        self._context: zmq.Context[Socket] = zmq.Context.instance()
        self.dealer = self._context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.ROUTING_ID, service.value.encode())
        self.dealer.connect(mailbox(settings, to))
        self.router: Socket | None = None

    def bind(self, receive_high_water_mark: int = 1000) -> None:
        """Bind a mailbox of its own."""
        self.router = self._context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.RCVHWM, receive_high_water_mark)
        self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.router.bind(self._endpoint)

    def send(self, body: msgspec.Struct, recipient: int = 0, **header: Any) -> None:
        """Write one message; the header may be falsified."""
        told = {"sender": self.service.value, "incarnation": self.incarnation, "recipient": recipient} | header
        self.dealer.send_multipart(CODEC.encode(Header(type(body).__name__, **told), body))

    def hello(self, recipient: int = 0, *, answer: bool = False) -> None:
        """Send a greeting."""
        self.send(Hello(1, State.READY, answer), recipient)

    def read(self, timeout_s: float = 60.0) -> tuple[Header, msgspec.Struct]:
        """Return the next message in this peer's mailbox."""
        assert self.router is not None
        assert self.router.poll(int(timeout_s * 1000)), "nothing came"
        _, *frames = self.router.recv_multipart()
        header = CODEC.header(frames)
        return header, CODEC.body(header, frames)

    def read_until(self, kind: type[msgspec.Struct]) -> tuple[Header, msgspec.Struct]:
        """Return the next message of one kind, skipping others."""
        while True:
            header, body = self.read()
            if isinstance(body, kind):
                return header, body

    def close(self) -> None:
        """Close all sockets, as a killed process does."""
        self.dealer.close(0)
        if self.router is not None:
            self.router.close(0)


def runtime(folder: Path, **fields: Any) -> RuntimeSettings:
    """Return runtime settings for a folder of a test's own."""
    return RuntimeSettings(dir=str(folder / "run"), **fields)


def progress(number: int) -> Progress:
    """Return a detokenizer's message that is identified by its number."""
    return Progress((Gap(Stream(1, 0), number),))
