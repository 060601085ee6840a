"""One DEALER socket on an event loop: many streams share it, and reading it never waits for anybody."""

import asyncio
import secrets
import uuid
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from noria.proto.base import Header
from noria.proto.frontdoor import TO_CLIENT
from noria.proto.wire import Codec, FrameError
from noria.shared.actor.curve import Curve

_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_MAIL_PER_TURN_MAX: Final = 256
_HIGH_WATER_MARK: Final = 10_000
_CLOSE_LINGER_MS: Final = 200  # the process may end right after: a cancel or acknowledgement should still leave

Receive = Callable[[Header, msgspec.Struct], None]


class Connection:
    """A socket to admission's public mailbox, under a routing id of its own.

    receive is called with each message, settled after each burst of them, connected at each (re)connection; all in
    the event loop. Must be made and closed inside the loop's thread.
    """

    def __init__(
        self,
        endpoint: str,
        receive: Receive,
        settled: Callable[[], None],
        connected: Callable[[], None],
        curve: Curve | None = None,
    ) -> None:
        self.name = f"client-{uuid.uuid4().hex}"
        self.incarnation = secrets.randbits(62) | 1
        self._receive = receive
        self._settled = settled
        self._connected = connected
        self._writable = False
        self._sequence = 0
        self._codec = Codec(TO_CLIENT)
        self._loop = asyncio.get_running_loop()
        self._scheduled: asyncio.Handle | None = None
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTING_ID, self.name.encode())
        # Mail is kept for a connection only: what is on the way when it breaks is asked for again, not delivered late.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.RCVHWM, _HIGH_WATER_MARK)
        if curve is not None:
            curve.equip(self._socket)
        self._socket.connect(endpoint)
        self._loop.add_reader(self._socket.FD, self._drain)
        self._schedule()

    @property
    def writable(self) -> bool:
        """Whether there is a connection that takes mail, as last looked."""
        return self._writable

    def send(self, body: msgspec.Struct, traceparent: str = "") -> bool:
        """Send now; False when there is no connection, or it is clogged, and nothing was sent."""
        if self._socket.closed or not (self._writable or self._look_for_connection()):
            return False
        header = Header(type(body).__name__, self.name, self.incarnation, 0, self._sequence + 1, traceparent)
        try:
            self._socket.send_multipart(self._codec.encode(header, body), zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            self._schedule()
        self._sequence += 1
        return True

    def close(self) -> None:
        """Close the socket after giving what was just sent a moment to leave."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._socket.FD)
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._socket.close(_CLOSE_LINGER_MS if self._writable else 0)

    def look(self) -> None:
        """See what has come and whether there is a connection.

        To be called now and then: about one new connection in a thousand was seen not to signal its descriptor.
        """
        self._drain()

    def _schedule(self) -> None:
        # The descriptor signals changes only, and sending may swallow a signal: look again after each use.
        if self._scheduled is None:
            self._scheduled = self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = None
        self.look()

    def _drain(self) -> None:
        if self._socket.closed:
            return
        took = 0
        while took < _MAIL_PER_TURN_MAX and self._take():
            took += 1
        if took:
            self._settled()
        self._look_for_connection()
        if took == _MAIL_PER_TURN_MAX or self._events() & zmq.POLLIN:
            self._schedule()

    def _look_for_connection(self) -> bool:
        writable = bool(self._events() & zmq.POLLOUT)
        if writable and not self._writable:
            self._writable = True
            self._connected()
        self._writable = writable
        return writable

    def _events(self) -> int:
        events = self._socket.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        return events

    def _take(self) -> bool:
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        try:
            header = self._codec.header(frames)
            body = self._codec.body(header, frames)
        except FrameError:
            pass  # dropped: whoever waits for an answer asks again
        else:
            self._receive(header, body)
        return True
