"""The sockets of one service: a bound mailbox that receives, and one link to each peer that sends.

Drops mail that names another incarnation than ours, or comes from one that has not been greeted.
Knows nothing of requests.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import msgspec
import zmq

from noria.proto import lifecycle
from noria.proto.base import Header, Service
from noria.proto.wire import Codec, FrameError, every_kind, inbound
from noria.shared.actor.curve import CurveKeys, configured_curve_keys
from noria.shared.actor.curve_authenticator import CurveAuthenticator
from noria.shared.actor.peer_link import PeerLink
from noria.shared.config.config import RuntimeSettings

INSPECTOR_PREFIX: Final = "inspector-"
_MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
_RECONNECT_MS: Final = 50
_RECONNECT_MS_MAX: Final = 500


def draw_incarnation() -> int:
    """Draw a random number that names this run of a process; never 0, which means unknown."""
    return secrets.randbits(62) | 1


class Mailbox:
    """One service's bound ROUTER and its DEALER links.

    With tcp and keys (`runtime.curve_dir`) it speaks CURVE: `authenticator` decides who may connect, and a message counts as
    its sender's only if it came with its sender's key. Raises zmq.ZMQError when the endpoint cannot be bound, UserError when
    keys are missing.
    """

    def __init__(
        self,
        service: Service,
        endpoint: str,
        peers: Mapping[Service, str],
        settings: RuntimeSettings,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self.service = service
        self.incarnation = draw_incarnation()
        self.dropped = 0
        self.malformed = 0
        self.gaps = 0
        self._context = context or zmq.Context.instance()
        self._codec = Codec((*every_kind(),))
        self._accepts = {sender: {kind.__name__ for kind in kinds} for sender, kinds in inbound(service).items()}
        self._last_sequences: dict[Service, int] = {}
        keys = configured_curve_keys(settings)
        self.authenticator = CurveAuthenticator(self._context, keys) if keys is not None else None
        self.router = self._context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.router.setsockopt(zmq.RCVHWM, settings.high_water_mark)
        self.router.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES_MAX)
        self.router.setsockopt(zmq.SNDHWM, settings.high_water_mark)
        if self.authenticator is not None and keys is not None:
            self.authenticator.secure(self.router, service.value, keys.internal_keys())
        self.router.bind(endpoint)
        if endpoint.startswith("ipc://"):
            os.chmod(endpoint.removeprefix("ipc://"), 0o600)
        self.links = {
            peer: PeerLink(peer, partial(self._connect, peer, address, settings, keys), settings.outbox_messages_max)
            for peer, address in peers.items()
        }

    def _connect(
        self, peer: Service, endpoint: str, settings: RuntimeSettings, keys: CurveKeys | None
    ) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.ROUTING_ID, self.service.value.encode())
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        socket.setsockopt(zmq.SNDHWM, settings.high_water_mark)
        socket.setsockopt(zmq.RCVHWM, 16)
        if keys is not None:
            keys.curve_to(peer.value, self.service.value).equip(socket)
        socket.connect(endpoint)
        return socket

    def close(self, linger_ms: int = 0) -> None:
        """Close every socket; messages just sent have `linger_ms` to leave."""
        for link in self.links.values():
            link.socket.close(linger_ms)
        self.router.close(0)
        if self.authenticator is not None:
            self.authenticator.close()

    def send(self, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        """Send to a peer that has joined.

        False when it has not, or when its outbox is full. A message to a peer that has not joined is not kept: whoever
        joins is sent everything it must know at that moment.
        """
        link = self.links[peer]
        if not link.joined:
            return False
        link.sequence += 1
        header = Header(
            type(body).__name__, self.service.value, self.incarnation, link.incarnation, link.sequence, traceparent
        )
        if link.send_or_queue(self._codec.encode(header, body)):
            return True
        link.sequence -= 1
        return False

    def try_send(self, peer: Service, body: msgspec.Struct) -> bool:
        """Send a greeting or heartbeat now or not at all; allowed to a peer that has not joined."""
        link = self.links[peer]
        # The number of messages sent before it, so that the receiver learns of a loss even when nothing follows.
        sequence = 0 if link.outbox else link.sequence
        header = Header(type(body).__name__, self.service.value, self.incarnation, link.incarnation, sequence)
        return link.try_send(self._codec.encode(header, body))

    def answer_hello(self, peer: Service, body: lifecycle.Hello) -> None:
        """Answer a peer's first greeting, in order: the peer drops whatever follows until it has this."""
        link = self.links[peer]
        header = Header(type(body).__name__, self.service.value, self.incarnation, link.incarnation)
        link.send_or_queue(self._codec.encode(header, body))

    def receive(self, limit: int) -> Iterable[tuple[bytes, Header, msgspec.Struct]]:
        """Yield up to `limit` readable messages as (routing id, header, body); unreadable ones are counted and dropped."""
        for _ in range(limit):
            try:
                identity, frames, holder = self._take()
            except zmq.Again:
                return
            try:
                header = self._codec.header(frames)
                sender = identity.decode("ascii", "replace")
                if sender.startswith(INSPECTOR_PREFIX):
                    allowed = header.kind == lifecycle.Inspect.__name__
                else:
                    allowed = header.sender == sender and header.kind in self._accepts.get(sender, ())
                    allowed = allowed and holder in (None, sender)
                if not allowed:
                    raise FrameError(f"{sender[:64]!r} may not send {header.kind[:64]!r} here")
                yield identity, header, self._codec.body(header, frames)
            except FrameError:
                self.malformed += 1

    def _take(self) -> tuple[bytes, list[bytes], str | None]:
        """The next message's routing id, frames and, with CURVE, whose key it came with. Raises zmq.Again."""
        if self.authenticator is None:
            identity, *frames = self.router.recv_multipart(zmq.NOBLOCK)
            return identity, frames, None
        first, *others = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
        holder = others[0].get("User-Id") if others else ""
        assert isinstance(holder, str)
        return first.bytes, [frame.bytes for frame in others], holder

    def is_current(self, header: Header) -> bool:
        """Whether a message is from the greeted incarnation of its sender to the present one of this process.

        Counts what is not as dropped, and notes on the sender's link when messages before this one are missing.
        """
        link = self.links.get(Service(header.sender))
        if link is None:
            return False
        alive = header.incarnation == link.incarnation and header.recipient == self.incarnation
        if not alive:
            self.dropped += 1
            return False
        link.knows_us = True
        if header.sequence:
            beat = header.kind == lifecycle.Heartbeat.__name__
            if header.sequence != self._last_sequences.get(link.peer, 0) + (0 if beat else 1):
                self.gaps += 1
                link.mail_lost = True
            self._last_sequences[link.peer] = header.sequence
        return True

    def accept_hello(self, header: Header, *, answer: bool = True) -> bool:
        """Take note of a `Hello`; True when the peer has just joined and must be sent everything it needs to know.

        That is a new incarnation, or one that has forgotten this process.

        A peer that knew us and greets as if it did not has given us up meanwhile, and dropped what we sent.
        """
        link = self.links.get(Service(header.sender))
        if link is None or header.incarnation in link.dead_incarnations:
            return False
        if header.incarnation == link.incarnation:
            forgot = link.knows_us and header.recipient == 0 and not answer
            link.knows_us = link.knows_us or header.recipient == self.incarnation
            if not forgot:
                return False
            link.reset()
            link.reconnect()
        else:
            link.follow_incarnation(header.incarnation)
        link.incarnation = header.incarnation
        link.knows_us = header.recipient == self.incarnation
        self._last_sequences[link.peer] = 0
        return True

    def answer_inspector(self, identity: bytes, body: msgspec.Struct) -> None:
        """Reply to an inspector by its routing id; the reply is dropped when it is gone or does not read."""
        header = Header(type(body).__name__, self.service.value, self.incarnation)
        try:
            self.router.send_multipart([identity, *self._codec.encode(header, body)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.dropped += 1

    def counts(self) -> dict[str, int]:
        """Message counts for the state snapshot: dropped, malformed, gaps, and waiting in outboxes."""
        return {
            "dropped": self.dropped,
            "malformed": self.malformed,
            "gaps": self.gaps,
            "outbox": sum(len(link.outbox) for link in self.links.values()),
        }
