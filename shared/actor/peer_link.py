"""Our end of the way to one peer: the socket, what waits for room in it, and the peer's lives that we have greeted.

Decides what is kept, and what is void when one life of the peer follows another; who is greeted is the mailbox's to say.
"""

from collections import deque
from collections.abc import Callable

import zmq

from noria.proto import lifecycle
from noria.proto.base import Service


class PeerLink:
    """Our socket to one peer's mailbox, the incarnation of the peer as last greeted, and what waits to be sent.

    `pid`, `state`, `progress`, `busy`, `expected_us` and `leaving_ms` are what the peer last said of itself; `knows_us` whether its
    present life has written to ours; `mail_lost` whether mail of it was lost on the way.
    """

    def __init__(self, peer: Service, connect: Callable[[], zmq.Socket[bytes]], outbox_max: int) -> None:
        self.peer = peer
        self.socket = connect()
        self._connect = connect
        self.incarnation = 0
        self.knows_us = False
        self.mail_lost = False
        self.dead_incarnations: deque[int] = deque(maxlen=32)
        self._last_incarnation = 0
        self.sequence = 0
        self.last_heard_ns = 0
        self.pid = 0
        self.state = lifecycle.State.STARTING
        self.progress = 0
        self.busy = False
        self.expected_us = 0
        self.leaving_ms = 0
        self.outbox: deque[list[bytes]] = deque()
        self._outbox_max = outbox_max

    @property
    def joined(self) -> bool:
        """Whether the peer has greeted us and has not been given up since."""
        return self.incarnation != 0

    def send_or_queue(self, frames: list[bytes]) -> bool:
        """Send now, or keep for later in order; False when the outbox is full and the message was not taken."""
        if not self.outbox and self._try(frames):
            return True
        if len(self.outbox) >= self._outbox_max:
            return False
        self.outbox.append(frames)
        return True

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self.outbox and self._try(self.outbox[0]):
            self.outbox.popleft()

    def try_send(self, frames: list[bytes]) -> bool:
        """Send now or not at all: for greetings and heartbeats, which are repeated."""
        return self._try(frames)

    def reset(self) -> None:
        """The peer is not there any more, or not for us: whatever was meant for it is void until it greets again."""
        self._last_incarnation = self.incarnation or self._last_incarnation
        self.incarnation = 0
        self.sequence = 0
        self.knows_us = False
        self.mail_lost = False
        self.outbox.clear()

    def give_up(self) -> None:
        """Nothing has been heard for too long: whoever greets next is the peer.

        Even one that we took for dead: late mail of its predecessor may have looked like its successor.
        """
        self.reset()
        self.dead_incarnations.clear()
        self.reconnect()

    def reconnect(self) -> None:
        """Begin a new connection: what we write does not arrive.

        A ROUTER that has seen our name on another connection reads ours no more, and neither side is told.
        """
        # A new socket: one that is disconnected may still take messages for the connection that is going away.
        self.socket.close(0)
        self.socket = self._connect()

    def follow_incarnation(self, successor: int) -> None:
        """The peer's life that we knew last is over, `successor` is the next; what still comes from it is void."""
        self.reset()
        if self._last_incarnation and self._last_incarnation != successor:
            self.dead_incarnations.append(self._last_incarnation)

    def _try(self, frames: list[bytes]) -> bool:
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return False
        return True
