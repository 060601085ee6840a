"""The socket of clients: checks what comes in, and sends what goes back.

Decides which mail from outside is a message at all: the routing id must be a client's, the header must name the same
sender, the kind must be one that clients send. Everything else is answered by `Malformed`. Knows nothing of requests.
A message larger than `limits.message_bytes_max` never arrives: ZeroMQ closes the connection that sends it.
"""

import errno
import os
import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

import msgspec
import zmq

from noria.proto import frontdoor
from noria.proto.base import Header, Service
from noria.proto.frontdoor import Malformed
from noria.proto.wire import Codec, FrameError
from noria.services.admission.core.state.events import FromClient
from noria.shared.actor.curve import PUBLIC
from noria.shared.actor.curve_authenticator import CurveAuthenticator
from noria.shared.errors import UserError

# A client's own queue: beyond it, its output waits in the ledger instead, where deltas are merged.
_MESSAGES_PER_CLIENT_MAX: Final = 64
# What a client has sent and is not read yet: beyond it, its connection waits.
_UNREAD_PER_CLIENT_MAX: Final = 16
_TCP_BEAT_MS, _TCP_SILENCE_MS = 10_000, 30_000
_LINGER_MS: Final = 200
_CLIENT: Final = re.compile(r"client-[\x21-\x7e]{1,57}")


class SendResult(Enum):
    """What became of a message to a client: taken by its socket, refused for now, or the client is not connected."""

    SENT = auto()
    BLOCKED = auto()
    GONE = auto()


class PublicMailbox:
    """The bound socket; with a gate it speaks CURVE, to any client or, where there is a list, to those on it.

    Raises zmq.ZMQError when the endpoint cannot be bound, UserError when its keys are missing.
    """

    def __init__(
        self,
        endpoint: str,
        incarnation: int,
        message_bytes_max: int,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        gate: CurveAuthenticator | None = None,
    ) -> None:
        self._incarnation = incarnation
        self._codec = Codec(frontdoor.TO_ADMISSION)
        self.malformed = 0
        self.socket = (context or zmq.Context.instance()).socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, message_bytes_max)
        self.socket.setsockopt(zmq.SNDHWM, _MESSAGES_PER_CLIENT_MAX)
        self.socket.setsockopt(zmq.RCVHWM, _UNREAD_PER_CLIENT_MAX)
        if endpoint.startswith("tcp://"):
            # A machine that vanished leaves connections that would otherwise stay for ever.
            self.socket.setsockopt(zmq.HEARTBEAT_IVL, _TCP_BEAT_MS)
            self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TCP_SILENCE_MS)
        try:
            if gate is not None:
                gate.secure(self.socket, PUBLIC, gate.keys.client_keys())
            self.socket.bind(endpoint)
        except (zmq.ZMQError, UserError):
            self.socket.close(0)
            raise
        if endpoint.startswith("ipc://"):
            os.chmod(endpoint.removeprefix("ipc://"), 0o600)

    def close(self) -> None:
        """Close the socket; what was sent has a moment to leave."""
        self.socket.close(_LINGER_MS)

    def receive(self, limit: int) -> Iterator[tuple[str, Header, FromClient]]:
        """Yield up to `limit` messages as (client, header, body); what is none is answered here."""
        for _ in range(limit):
            try:
                identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            client = identity.decode("ascii", "replace")
            kind = ""
            try:
                header = self._codec.header(frames)
                kind = header.kind
                yield client, header, self._read(client, header, frames)
            except FrameError as error:
                self.refuse(client, kind, str(error))

    def send(self, client: str, incarnation: int, sequence: int, body: msgspec.Struct) -> SendResult:
        """Send to a client's life `incarnation` now or not at all."""
        header = Header(type(body).__name__, Service.ADMISSION.value, self._incarnation, incarnation, sequence)
        try:
            self.socket.send_multipart([client.encode("ascii"), *self._codec.encode(header, body)], zmq.NOBLOCK)
        except zmq.Again:
            return SendResult.BLOCKED
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return SendResult.GONE
            raise
        return SendResult.SENT

    def refuse(self, client: str, kind: str, reason: str) -> None:
        """Answer a malformed message with `Malformed`, if its sender has a client's name and reads; dropped otherwise."""
        self.malformed += 1
        if _CLIENT.fullmatch(client) is not None:
            self.send(client, 0, 0, Malformed(kind[:64], reason[:512]))

    def _read(self, client: str, header: Header, frames: list[bytes]) -> FromClient:
        if _CLIENT.fullmatch(client) is None:
            raise FrameError("a client's routing id is client- and up to 57 printable characters")
        if header.sender != client:
            raise FrameError(f"the header names the sender {header.sender[:64]!r}, the connection {client!r}")
        if header.recipient not in (0, self._incarnation):
            # Meant for a predecessor, of which the sender does not know yet that it is gone.
            raise FrameError("this names an earlier life of admission; attach again")
        body = self._codec.body(header, frames)
        assert isinstance(body, frontdoor.TO_ADMISSION)
        return body
