"""The outgoing connection to one peer: its socket, an outbox of messages that wait for room in it, and the peer's incarnation.

Decides which messages are kept and which are dropped when the peer restarts; the mailbox decides whose greeting counts.
"""

from collections import deque
from collections.abc import Callable

import zmq

from noria.proto import lifecycle
from noria.proto.base import Service


class PeerLink:
    """A socket to one peer's mailbox, the peer's incarnation as last greeted, and messages that wait to be sent.

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
        """Treat the peer as not joined: drop the outbox and its incarnation until it greets again."""
        self._last_incarnation = self.incarnation or self._last_incarnation
        self.incarnation = 0
        self.sequence = 0
        self.knows_us = False
        self.mail_lost = False
        self.outbox.clear()

    def give_up(self) -> None:
        """Drop a peer that was silent for too long and connect anew; whoever greets next is accepted.

        That holds for an incarnation taken for dead, too: late mail of its predecessor may have looked like its successor.
        """
        self.reset()
        self.dead_incarnations.clear()
        self.reconnect()

    def reconnect(self) -> None:
        """Replace the socket, for when messages sent over it do not arrive.

        A ROUTER that has seen our name on another connection no longer reads this one, and neither side learns of it.
        """
        # A new socket: one that is disconnected may still take messages for the connection that is going away.
        self.socket.close(0)
        self.socket = self._connect()

    def follow_incarnation(self, successor: int) -> None:
        """Reset the link for the peer's next incarnation `successor`; mail of the one before is dropped from now on."""
        self.reset()
        if self._last_incarnation and self._last_incarnation != successor:
            self.dead_incarnations.append(self._last_incarnation)

    def _try(self, frames: list[bytes]) -> bool:
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return False
        return True
