"""Which peers of a process have joined and are alive: handshake by `Hello`, heartbeats, and a timeout of silence.

Decides when a peer has joined, when mail was lost so that both sides must greet anew, and when a peer is given up. Which
mail is outdated is decided in the mailbox. Knows nothing of requests, and only the callbacks of the shell.
"""

import os
import time
from collections.abc import Callable
from typing import Final

import msgspec

from noria.proto.base import Header, Service
from noria.proto.lifecycle import WIRE_FORMAT, Heartbeat, Hello, State
from noria.shared.actor.mailbox import Mailbox
from noria.shared.actor.shell import Shell
from noria.shared.config.config import RuntimeSettings
from noria.shared.telemetry.log import logger

_HELLO_INTERVAL_NS: Final = 100_000_000
_REFUSED_MAX: Final = 64


class PeerLiveness:
    """Sends `Hello` to the peers of one mailbox and heartbeats to those that have joined; gives up those that are silent.

    expected_us: returns microseconds that the work under way should take; 0 where unknown.
    """

    def __init__(self, mailbox: Mailbox, settings: RuntimeSettings) -> None:
        self.expected_us: Callable[[], int] = lambda: 0
        self._mailbox = mailbox
        self._heartbeat_ns = int(settings.heartbeat_s * 1e9)
        self._peer_timeout_ns = int(settings.peer_timeout_s * 1e9)
        self._next_hello_ns = 0
        self._next_heartbeat_ns = 0
        self._announced_state = State.STARTING
        self._refused: set[int] = set()
        self._log = logger(mailbox.service.value)

    @property
    def due_ns(self) -> int:
        """When `tick` next has something to do, in nanoseconds of the monotonic clock."""
        return min(self._next_hello_ns, self._next_heartbeat_ns)

    def handle(self, shell: Shell, header: Header, body: msgspec.Struct) -> bool:
        """Update the sender's state from a message; True when the message is for the shell.

        False for greetings and heartbeats, and for mail that is dropped: of strangers, of earlier incarnations, and
        whatever follows lost mail.
        """
        link = self._mailbox.links.get(Service(header.sender))
        if link is None:
            return False
        if isinstance(body, Hello):
            self._handle_hello(shell, header, body)
            return False
        if not self._mailbox.is_current(header):
            return False
        link.last_heard_ns = time.monotonic_ns()
        if link.mail_lost:
            # A connection that breaks or is taken over loses what is in it. Greeting anew makes both sides send everything.
            self._log.warning("mail lost", peer=link.peer.value)
            link.reset()
            self._next_hello_ns = 0
            return False
        if isinstance(body, Heartbeat):
            link.state, link.progress, link.busy = body.state, body.progress, body.busy
            link.expected_us = body.expected_us
            link.leaving_ms = link.leaving_ms or body.leaving_ms  # a farewell may follow
            return False
        return True

    def tick(self, shell: Shell, now_ns: int) -> None:
        """Send greetings and heartbeats that are due; give up peers that have been silent for too long."""
        if now_ns >= self._next_hello_ns:
            self._send_hellos(shell, now_ns)
        if now_ns >= self._next_heartbeat_ns:
            self._send_heartbeats(shell, now_ns)

    def state_changed(self, state: State) -> None:
        """Make the next heartbeat due at once if the state differs from the last one given, since peers wait for changes."""
        if state is not self._announced_state:
            self._announced_state = state
            self._next_heartbeat_ns = 0

    def send_leaving(self, leaving_s: float) -> None:
        """Tell everyone who has joined that this process ends now, and how long that may take: no more heartbeats are due."""
        beat = Heartbeat(self._announced_state, leaving_ms=max(1, int(leaving_s * 1000)))
        for peer, link in self._mailbox.links.items():
            if link.joined:
                self._mailbox.try_send(peer, beat)

    def send_stopped(self) -> None:
        """Send a heartbeat with state STOPPED to every peer that has joined."""
        for peer, link in self._mailbox.links.items():
            if link.joined:
                self._mailbox.try_send(peer, Heartbeat(State.STOPPED))

    def _handle_hello(self, shell: Shell, header: Header, body: Hello) -> None:
        sender = Service(header.sender)
        link = self._mailbox.links[sender]
        if body.wire_format != WIRE_FORMAT:
            self._refuse(header, body)
            return
        if header.recipient not in (0, self._mailbox.incarnation):
            # It greets our predecessor; our own Hello is repeated until it answers and names our incarnation.
            return
        if self._mailbox.accept_hello(header, answer=body.answer):
            link.last_heard_ns = time.monotonic_ns()
            link.pid = body.pid
            link.state, link.progress, link.busy, link.expected_us = body.state, 0, False, 0
            link.leaving_ms = 0
            self._log.info("peer joined", peer=sender.value, incarnation=f"{header.incarnation:x}", pid=body.pid)
            self._mailbox.answer_hello(sender, _hello(shell, answer=True))
            shell.joined(sender)
        elif header.incarnation == link.incarnation:
            if link.state is State.STARTING:
                link.state = body.state  # it may have become ready before it knew this peer
            if not body.answer:
                self._mailbox.try_send(sender, _hello(shell, answer=True))

    def _refuse(self, header: Header, body: Hello) -> None:
        """Ignore a peer with another wire format, whose messages could be misread, and log that once."""
        if header.incarnation in self._refused:
            return
        if len(self._refused) >= _REFUSED_MAX:
            self._refused.clear()
        self._refused.add(header.incarnation)
        self._log.error(
            "peer speaks another wire format and is not talked to; start one version of all services",
            peer=header.sender,
            incarnation=f"{header.incarnation:x}",
            pid=body.pid,
            wire_format=body.wire_format,
            own_wire_format=WIRE_FORMAT,
        )

    def _send_hellos(self, shell: Shell, now_ns: int) -> None:
        absent = [peer for peer, link in self._mailbox.links.items() if not link.joined]
        for peer in absent:
            self._mailbox.try_send(peer, _hello(shell, answer=False))
        self._next_hello_ns = now_ns + (_HELLO_INTERVAL_NS if absent else self._heartbeat_ns)

    def _send_heartbeats(self, shell: Shell, now_ns: int) -> None:
        self._next_heartbeat_ns = now_ns + self._heartbeat_ns
        progress, busy = shell.progress()
        beat = Heartbeat(shell.state(), progress, busy, expected_us=self.expected_us())
        for peer, link in self._mailbox.links.items():
            if not link.joined:
                continue
            self._mailbox.try_send(peer, beat)
            if now_ns - link.last_heard_ns > self._peer_timeout_ns:
                self._log.warning("peer lost", peer=peer.value)
                link.give_up()
                self._next_hello_ns = now_ns
                shell.lost(peer)


def _hello(shell: Shell, *, answer: bool) -> Hello:
    return Hello(os.getpid(), shell.state(), answer, WIRE_FORMAT)
