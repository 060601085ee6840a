"""The loop that every service shares: receive, apply, send, measure.

An actor owns a mailbox and a `Shell`. Each turn takes all mail that has come (up to a limit), gives it to the shell,
then calls `advance` once, so that a burst of messages costs one round of work. The actor greets peers, beats the heart,
notices who is gone, answers `Inspect`, and stops at SIGTERM. It knows nothing of requests.

What is told of a process is what it stands at between two turns: whatever came is worked off, on record and counted.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
import zmq

from noria.proto.base import Header, Service
from noria.proto.lifecycle import Drain, Heartbeat, Hello, Inspect, Snapshot, State
from noria.shared.config import RuntimeSettings
from noria.shared.log import logger
from noria.shared.mailbox import Mailbox

MAIL_PER_TURN_MAX: Final = 256
_HELLO_INTERVAL_NS: Final = 100_000_000
_POLL_MS_MAX: Final = 1000
_FAREWELL_MS: Final = 200


class Shell(Protocol):
    """What a service is to its actor. All calls come from the actor's one thread."""

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Take one message of a peer that has joined."""

    def joined(self, peer: Service) -> None:
        """A peer began a new life and remembers nothing: send it everything it must know."""

    def lost(self, peer: Service) -> None:
        """A peer has been silent for `peer_timeout_s`."""

    def congested(self, peer: Service) -> None:
        """A message for this peer was not taken because its outbox is full."""

    def advance(self, now_ns: int) -> int | None:
        """Do this turn's work; return the monotonic time of the next wanted turn, or None for none."""

    def state(self) -> State:
        """STARTING until ready."""

    def progress(self) -> tuple[int, bool]:
        """Work done so far, and whether work is waiting or under way."""

    def snapshot(self) -> dict[str, Any]:
        """Counts and queues for people and tests."""

    def drain(self, timeout_ms: int) -> None:
        """Take nothing new, finish what runs."""

    def close(self) -> None:
        """The actor stops: release everything."""


class Actor:
    """Runs one shell on one mailbox until SIGTERM or `stop`."""

    def __init__(self, mailbox: Mailbox, settings: RuntimeSettings) -> None:
        self.mailbox = mailbox
        self._heartbeat_ns = int(settings.heartbeat_s * 1e9)
        self._peer_timeout_ns = int(settings.peer_timeout_s * 1e9)
        self._poller = zmq.Poller()
        self._poller.register(mailbox.router, zmq.POLLIN)
        self._watched: dict[Any, Callable[[], None]] = {}
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._wake.setblocking(False)
        self._poller.register(self._wake.fileno(), zmq.POLLIN)
        self._stopping = False
        self._hung_up = False
        self._reload: Callable[[], None] | None = None
        self._answer: Callable[[str], dict[str, Any]] | None = None
        self._release: Callable[[], None] | None = None
        self._expected_us: Callable[[], int] | None = None
        self._topics: dict[str, Callable[[str], object]] = {}
        self._each_turn: list[Callable[[int], None]] = []
        self._asked: list[tuple[bytes, Inspect]] = []
        self._flushing: dict[Service, zmq.Socket[bytes]] = {}
        self._next_heartbeat_ns = 0
        self._next_hello_ns = 0
        self._wanted_ns: int | None = 0
        self._told = State.STARTING
        self._measures: dict[str, Callable[[], object]] = {}
        self._log = logger(mailbox.service.value)

    @property
    def service(self) -> Service:
        """Whose actor this is."""
        return self.mailbox.service

    def watch(self, source: "zmq.Socket[bytes] | int", callback: Callable[[], None]) -> None:
        """Call back in the actor's thread whenever a socket or file descriptor can be read."""
        self._watched[source] = callback
        self._poller.register(source, zmq.POLLIN)

    def unwatch(self, source: "zmq.Socket[bytes] | int") -> None:
        """Stop watching."""
        del self._watched[source]
        self._poller.unregister(source)

    def measure(self, name: str, counts: Callable[[], object]) -> None:
        """Show what `counts` returns under this name in every snapshot."""
        self._measures[name] = counts

    def wake(self) -> None:
        """Begin a turn soon; may be called from any thread and from signal handlers."""
        with contextlib.suppress(OSError):  # the pipe is full of wakes already, or closed because the loop has ended
            self._waker.send(b"\0")

    def stop(self) -> None:
        """End the loop after the present turn; may be called from any thread."""
        self._stopping = True
        self.wake()

    def on_question(self, answer: Callable[[str], dict[str, Any]]) -> None:
        """Answer an `Inspect` that asks about one thing with what this returns for it."""
        self._answer = answer

    def expect(self, expected_us: Callable[[], int]) -> None:
        """Say in heartbeats how long the work under way should take, as this predicts it; 0 where it cannot."""
        self._expected_us = expected_us

    def on_topic(self, topic: str, answer: Callable[[str], object]) -> None:
        """Answer an `Inspect` of this topic with what this returns for what it is about, which must be fit for JSON."""
        self._topics[topic] = answer

    def each_turn(self, call: Callable[[int], None]) -> None:
        """Call this with the monotonic time at the end of every turn."""
        self._each_turn.append(call)

    def on_leave(self, release: Callable[[], None]) -> None:
        """Call this when the process gives up its place; see `leave`."""
        self._release = release

    def leave(self) -> None:
        """Give up the process's place while it goes on to finish what it has begun: a successor may take its name.

        Peers are told by a last heartbeat, STOPPED. Only to be called while the shell is being closed.
        """
        for peer, link in self.mailbox.links.items():
            if link.joined:
                self.mailbox.send_once(peer, Heartbeat(State.STOPPED))
        self.mailbox.close(_FAREWELL_MS)
        if self._release is not None:
            self._release()

    def on_hang_up(self, reload: Callable[[], None]) -> None:
        """Call this in the actor's thread, between two turns, whenever SIGHUP has come."""
        self._reload = reload

    def hang_up(self) -> None:
        """SIGHUP has come; may be called from signal handlers and from any thread."""
        self._hung_up = True
        self.wake()

    def stop_on_signals(self) -> None:
        """SIGTERM ends the loop, a second one the process; SIGINT belongs to the supervisor alone, SIGHUP reloads."""

        def terminate(signum: int, frame: object) -> None:
            del signum, frame
            if self._stopping:
                os._exit(128 + signal.SIGTERM)
            self.stop()

        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, lambda *_: self.hang_up())

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        """Send to a peer; a full outbox is told to the shell, a peer that has not joined gets nothing."""
        link = self.mailbox.links[peer]
        if not link.joined:
            return False
        if self.mailbox.send(peer, body, traceparent):
            return True
        shell.congested(peer)
        return False

    def run(self, shell: Shell) -> None:
        """Run turns until stopped, then close the shell and the mailbox."""
        try:
            while not self._stopping:
                self.turn(shell)
        finally:
            shell.close()
            self.mailbox.close()
            self._waker.close()
            self._wake.close()

    def turn(self, shell: Shell) -> None:
        """Wait for mail for as long as nothing is due; then take it, do the shell's work, and send."""
        self._take_mail(shell, self.pause_ms())
        if self._hung_up:
            self._hung_up = False
            if self._reload is not None:
                self._reload()
        now_ns = time.monotonic_ns()
        self._tend_links(shell, now_ns)
        self._wanted_ns = shell.advance(now_ns)
        for call in self._each_turn:
            call(now_ns)
        for identity, asked in self._asked:
            self.mailbox.answer(identity, self._told_of(shell, asked))
        self._asked.clear()
        if shell.state() is not self._told:
            # A change of state is news that others wait for: it goes out at once.
            self._told = shell.state()
            self._next_heartbeat_ns = 0
        self._flush()

    def pause_ms(self) -> float:
        """How long the next turn may wait for mail."""
        now_ns = time.monotonic_ns()
        until = min(self._next_heartbeat_ns, self._next_hello_ns) - now_ns
        if self._wanted_ns is not None:
            until = min(until, self._wanted_ns - now_ns)
        return min(max(until / 1e6, 0.0), _POLL_MS_MAX)

    def _take_mail(self, shell: Shell, timeout_ms: float) -> None:
        # Poll takes whole milliseconds: rounding up keeps an early timer from spinning.
        for source, _ in self._poller.poll(int(timeout_ms + 0.999)):
            if source == self._wake.fileno():
                self._drain_wakes()
            elif source is self.mailbox.router:
                for identity, header, body in self.mailbox.receive(MAIL_PER_TURN_MAX):
                    self._deliver(shell, identity, header, body)
            elif (callback := self._watched.get(source)) is not None:
                callback()

    def _drain_wakes(self) -> None:
        try:
            while self._wake.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _deliver(self, shell: Shell, identity: bytes, header: Header, body: msgspec.Struct) -> None:
        if isinstance(body, Inspect):
            self._asked.append((identity, body))
            return
        sender = Service(header.sender)
        link = self.mailbox.links.get(sender)
        if link is None:
            return
        if isinstance(body, Hello):
            self._greeted(shell, header, body)
            return
        if not self.mailbox.current(header):
            return
        link.last_heard_ns = time.monotonic_ns()
        if link.missed:
            # A connection that breaks or is taken over loses what is in it. Greeting anew makes both sides tell all.
            self._log.warning("mail lost", peer=sender.value)
            link.forget()
            self._next_hello_ns = 0
            return
        if isinstance(body, Heartbeat):
            link.state, link.progress, link.busy = body.state, body.progress, body.busy
            link.expected_us = body.expected_us
            return
        if isinstance(body, Drain):
            shell.drain(body.timeout_ms)
            return
        shell.receive(sender, header, body)

    def _greeted(self, shell: Shell, header: Header, body: Hello) -> None:
        sender = Service(header.sender)
        link = self.mailbox.links[sender]
        if header.recipient not in (0, self.mailbox.incarnation):
            # It greets our predecessor; our own Hello, repeated until it answers, will tell it better.
            return
        if self.mailbox.greet(header, answer=body.answer):
            link.last_heard_ns = time.monotonic_ns()
            link.pid = body.pid
            link.state, link.progress, link.busy, link.expected_us = body.state, 0, False, 0
            self._log.info("peer joined", peer=sender.value, incarnation=f"{header.incarnation:x}", pid=body.pid)
            self.mailbox.greet_back(sender, Hello(os.getpid(), shell.state(), answer=True))
            shell.joined(sender)
        elif header.incarnation == link.incarnation:
            if link.state is State.STARTING:
                link.state = body.state  # it may have become ready before it knew whom to tell
            if not body.answer:
                self._hello(shell, sender, answer=True)

    def _hello(self, shell: Shell, peer: Service, *, answer: bool) -> None:
        self.mailbox.send_once(peer, Hello(os.getpid(), shell.state(), answer))

    def _tend_links(self, shell: Shell, now_ns: int) -> None:
        if now_ns >= self._next_hello_ns:
            self._next_hello_ns = now_ns + _HELLO_INTERVAL_NS
            waiting = [peer for peer, link in self.mailbox.links.items() if not link.joined]
            for peer in waiting:
                self._hello(shell, peer, answer=False)
            if not waiting:
                self._next_hello_ns = now_ns + self._heartbeat_ns
        if now_ns >= self._next_heartbeat_ns:
            self._next_heartbeat_ns = now_ns + self._heartbeat_ns
            progress, busy = shell.progress()
            expected_us = self._expected_us() if self._expected_us is not None else 0
            beat = Heartbeat(shell.state(), progress, busy, expected_us=expected_us)
            for peer, link in self.mailbox.links.items():
                if link.joined:
                    self.mailbox.send_once(peer, beat)
                    if now_ns - link.last_heard_ns > self._peer_timeout_ns:
                        self._log.warning("peer lost", peer=peer.value)
                        link.give_up()
                        self._next_hello_ns = now_ns
                        shell.lost(peer)

    def _flush(self) -> None:
        for peer, link in self.mailbox.links.items():
            if link.outbox:
                link.flush()
            waited_for = self._flushing.get(peer)
            wanted = link.socket if link.outbox else None
            if waited_for is wanted:
                continue
            if waited_for is not None:
                self._poller.unregister(self._flushing.pop(peer))
            if wanted is not None:
                self._flushing[peer] = wanted
                self._poller.register(wanted, zmq.POLLOUT)

    def _told_of(self, shell: Shell, asked: Inspect) -> Snapshot:
        if not asked.topic:
            return self._snapshot(shell, asked.about)
        answer = self._topics.get(asked.topic)
        content = msgspec.json.encode(answer(asked.about)) if answer is not None else b"null"
        return Snapshot(self.service.value, os.getpid(), shell.state(), content)

    def _snapshot(self, shell: Shell, about: str) -> Snapshot:
        content = {
            "incarnation": f"{self.mailbox.incarnation:x}",
            "peers": {peer.value: f"{link.incarnation:x}" for peer, link in self.mailbox.links.items()},
            "mail": self.mailbox.counts(),
            **{name: counts() for name, counts in self._measures.items()},
            **(self._answer(about) if about and self._answer is not None else shell.snapshot()),
        }
        return Snapshot(self.service.value, os.getpid(), shell.state(), msgspec.json.encode(content))
