"""Asks services for their state: sends one `Inspect` to each mailbox and collects the answers that come in time.

Used by people and tests through `noria ps` and `/debug/state`. Needs no greeting: an inspector is nobody's peer.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterable
from typing import Final

import msgspec
import zmq

from noria.proto.base import Header, Service
from noria.proto.lifecycle import FROM_INSPECTOR, TO_INSPECTOR, Inspect, Snapshot
from noria.proto.wire import Codec, FrameError
from noria.shared.actor.curve import configured_curve_keys
from noria.shared.actor.endpoints import mailbox
from noria.shared.actor.mailbox import INSPECTOR_PREFIX, draw_incarnation
from noria.shared.config.config import RuntimeSettings

_CODEC: Final = Codec((*FROM_INSPECTOR, *TO_INSPECTOR))
_SNAPSHOT_BYTES_MAX: Final = 16 * 1024 * 1024


def inspect(
    settings: RuntimeSettings, service: Service, timeout_s: float = 1.0, about: str = "", topic: str = ""
) -> Snapshot | None:
    """The snapshot of one service; None when it does not answer in time. about, topic: as in `Inspect`."""
    return inspect_all(settings, (service,), timeout_s, about, topic).get(service)


def inspect_all(
    settings: RuntimeSettings,
    services: Iterable[Service] = tuple(Service),
    timeout_s: float = 1.0,
    about: str = "",
    topic: str = "",
) -> dict[Service, Snapshot]:
    """Ask services side by side; those that do not answer within `timeout_s` are left out."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    poller = zmq.Poller()
    sockets: dict[zmq.Socket[bytes], Service] = {}
    found: dict[Service, Snapshot] = {}
    try:
        for service in services:
            socket = _ask(context, settings, service, Inspect(about, topic))
            sockets[socket] = service
            poller.register(socket, zmq.POLLIN)
        deadline = time.monotonic() + timeout_s
        while len(found) < len(sockets) and (left_s := deadline - time.monotonic()) > 0:
            for socket, _ in poller.poll(int(left_s * 1000) + 1):
                snapshot = _read(socket)
                if snapshot is not None:
                    found[sockets[socket]] = snapshot
    finally:
        for socket in sockets:
            socket.close(0)
    return {service: found[service] for service in Service if service in found}


class Inspector:
    """Asks services repeatedly over the same sockets; to be used by one thread at a time."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._sockets: dict[Service, zmq.Socket[bytes]] = {}

    def ask(
        self, services: Iterable[Service], topic: str, about: str = "", timeout_s: float = 1.0
    ) -> dict[Service, Snapshot]:
        """Ask services side by side; those that do not answer in time are left out, and asked over a new socket next."""
        question = Inspect(about, topic)
        waiting: dict[zmq.Socket[bytes], Service] = {}
        poller = zmq.Poller()
        for service in services:
            socket = self._sockets.get(service)
            if socket is None:
                socket = self._sockets[service] = _ask(self._context, self._settings, service, question)
            else:
                _send(socket, question)
            waiting[socket] = service
            poller.register(socket, zmq.POLLIN)
        found: dict[Service, Snapshot] = {}
        deadline = time.monotonic() + timeout_s
        while len(found) < len(waiting) and (left_s := deadline - time.monotonic()) > 0:
            for socket, _ in poller.poll(int(left_s * 1000) + 1):
                snapshot = _read(socket)
                if snapshot is not None:
                    found[waiting[socket]] = snapshot
        for service in waiting.values():
            if service not in found:  # an answer that comes late must not be taken for that of the next question
                self._sockets.pop(service).close(0)
        return found

    def close(self) -> None:
        """Close the sockets."""
        for socket in self._sockets.values():
            socket.close(0)
        self._sockets.clear()


class _RequestExplanation(msgspec.Struct, frozen=True):
    """A service's answer about one request: the numbers of the request inside the stack, and lines of text."""

    numbers: tuple[int, ...] = ()
    why: tuple[str, ...] = ()


def explain_request(settings: RuntimeSettings, request: str, timeout_s: float = 1.0) -> list[str]:
    """Lines of text from admission and the scheduler on why a request is where it is; empty when it is unknown.

    request: its id, or its number inside the stack.
    """
    named = _explanation(settings, Service.ADMISSION, request, timeout_s)
    numbers = [str(each) for each in named.numbers] or ([request] if request.isdecimal() else [])
    lines = list(named.why)
    for number in numbers:
        lines += _explanation(settings, Service.SCHEDULER, number, timeout_s).why
    return lines


def request_numbers(settings: RuntimeSettings, request: str, timeout_s: float = 1.0) -> list[str]:
    """The numbers inside the stack, as decimal text, of the requests with an id; a number stands for itself."""
    named = _explanation(settings, Service.ADMISSION, request, timeout_s)
    return [str(each) for each in named.numbers] or ([request] if request.isdecimal() else [])


def _explanation(settings: RuntimeSettings, service: Service, about: str, timeout_s: float) -> _RequestExplanation:
    answer = inspect(settings, service, timeout_s, about) if about else None
    return msgspec.json.decode(answer.json, type=_RequestExplanation) if answer is not None else _RequestExplanation()


async def inspect_all_async(
    settings: RuntimeSettings, services: Iterable[Service] = tuple(Service), timeout_s: float = 1.0, topic: str = ""
) -> dict[Service, Snapshot]:
    """`inspect_all` for event loops."""
    return await asyncio.to_thread(inspect_all, settings, tuple(services), timeout_s, "", topic)


def _ask(
    context: "zmq.Context[zmq.Socket[bytes]]", settings: RuntimeSettings, service: Service, question: Inspect
) -> "zmq.Socket[bytes]":
    name = f"{INSPECTOR_PREFIX}{secrets.token_hex(8)}"
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTING_ID, name.encode())
    socket.setsockopt(zmq.MAXMSGSIZE, _SNAPSHOT_BYTES_MAX)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    keys = configured_curve_keys(settings)
    if keys is not None:
        keys.curve_to(service.value, keys.tools_owner()).equip(socket)
    socket.connect(mailbox(settings, service))
    # Not yet connected: the socket keeps the question until it is, or until it is closed.
    _send(socket, question)
    return socket


def _send(socket: "zmq.Socket[bytes]", question: Inspect) -> None:
    name = socket.getsockopt(zmq.ROUTING_ID)
    assert isinstance(name, bytes)
    frames = _CODEC.encode(Header(Inspect.__name__, name.decode(), draw_incarnation()), question)
    # Whoever refuses our key has ended the connection for good, perhaps just now: then there is nobody to ask.
    with contextlib.suppress(zmq.Again):
        socket.send_multipart(frames, zmq.NOBLOCK)


def _read(socket: "zmq.Socket[bytes]") -> Snapshot | None:
    frames = socket.recv_multipart(zmq.NOBLOCK)
    try:
        body = _CODEC.body(_CODEC.header(frames), frames)
    except FrameError:
        return None
    return body if isinstance(body, Snapshot) else None
