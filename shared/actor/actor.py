"""The loop that every service shares: receive, apply, send, measure.

An actor owns a mailbox and a `Shell`. Each turn takes all mail that has come (up to a limit), gives it to the shell,
then calls `advance` once, so that a burst of messages costs one round of work. The actor answers `Inspect` and stops at
SIGTERM; its `PeerLiveness` knows which peers have joined and are alive. It knows nothing of requests.

Snapshots are taken between two turns, so that they show a state in which all mail that has come is handled, recorded
and counted.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import zmq

from noria.proto.base import Header, Service
from noria.proto.lifecycle import Drain, Inspect, Snapshot
from noria.shared.actor.mailbox import Mailbox
from noria.shared.actor.peer_liveness import PeerLiveness
from noria.shared.actor.shell import Shell
from noria.shared.config.config import RuntimeSettings

MAIL_PER_TURN_MAX: Final = 256
_POLL_MS_MAX: Final = 1000
_FAREWELL_MS: Final = 200


class Actor:
    """Runs one shell on one mailbox until SIGTERM or `stop`."""

    def __init__(self, mailbox: Mailbox, settings: RuntimeSettings) -> None:
        self.mailbox = mailbox
        self._liveness = PeerLiveness(mailbox, settings)
        self._poller = zmq.Poller()
        self._poller.register(mailbox.router, zmq.POLLIN)
        self._watched: dict[Any, Callable[[], None]] = {}
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._wake.setblocking(False)
        self._poller.register(self._wake.fileno(), zmq.POLLIN)
        self._stopping = False
        self._reload_requested = False
        self._reload: Callable[[], None] | None = None
        self._answer: Callable[[str], dict[str, Any]] | None = None
        self._release: Callable[[], None] | None = None
        self._leaving_s = settings.stop_timeout_s
        self._before_close: list[Callable[[float], None]] = []
        self._topics: dict[str, Callable[[str], object]] = {}
        self._each_turn: list[Callable[[int], None]] = []
        self._inspections: list[tuple[bytes, Inspect]] = []
        self._flushing: dict[Service, zmq.Socket[bytes]] = {}
        self._next_turn_ns: int | None = 0
        self._snapshot_entries: dict[str, Callable[[], object]] = {}

    @property
    def service(self) -> Service:
        """The service that this actor runs."""
        return self.mailbox.service

    def watch(self, source: "zmq.Socket[bytes] | int", callback: Callable[[], None]) -> None:
        """Call back in the actor's thread whenever a socket or file descriptor can be read."""
        self._watched[source] = callback
        self._poller.register(source, zmq.POLLIN)

    def unwatch(self, source: "zmq.Socket[bytes] | int") -> None:
        """Stop calling back for a socket or file descriptor given to `watch`."""
        del self._watched[source]
        self._poller.unregister(source)

    def add_to_snapshot(self, name: str, counts: Callable[[], object]) -> None:
        """Show what `counts` returns under this name in every snapshot."""
        self._snapshot_entries[name] = counts

    def wake(self) -> None:
        """Begin a turn soon; may be called from any thread and from signal handlers."""
        with contextlib.suppress(OSError):  # the pipe is full of wakes already, or closed because the loop has ended
            self._waker.send(b"\0")

    def stop(self) -> None:
        """End the loop after the present turn; may be called from any thread."""
        self._stopping = True
        self.wake()

    def on_question(self, answer: Callable[[str], dict[str, Any]]) -> None:
        """Answer an `Inspect` without a topic that names a request with what `answer` returns for that name."""
        self._answer = answer

    def on_expected_time(self, expected_us: Callable[[], int]) -> None:
        """Put what this returns into heartbeats: microseconds that the work under way should take, 0 where unknown."""
        self._liveness.expected_us = expected_us

    def on_topic(self, topic: str, answer: Callable[[str], object]) -> None:
        """Answer an `Inspect` of this topic with what this returns for what it is about, which must be fit for JSON."""
        self._topics[topic] = answer

    def each_turn(self, call: Callable[[int], None]) -> None:
        """Call this with the monotonic time at the end of every turn."""
        self._each_turn.append(call)

    def before_close(self, call: Callable[[float], None]) -> None:
        """Call this when the loop is over and the shell is about to be closed, with the seconds that this may take."""
        self._before_close.append(call)

    def leave_within(self, seconds: float) -> None:
        """Say how long this process may take to end; `runtime.stop_timeout_s` where nobody says."""
        self._leaving_s = seconds

    def on_leave(self, release: Callable[[], None]) -> None:
        """Set what `leave` calls to let a successor start, such as the release of the process's lock."""
        self._release = release

    def leave(self) -> None:
        """Let a successor take over this process's name and lock while it goes on to finish what it has begun.

        Sends peers a last heartbeat, STOPPED, and closes the mailbox. Only to be called while the shell is being closed.
        """
        self._liveness.send_stopped()
        self.mailbox.close(_FAREWELL_MS)
        if self._release is not None:
            self._release()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Set what is called in the actor's thread, between two turns, after each SIGHUP."""
        self._reload = reload

    def request_reload(self) -> None:
        """Have the configuration reloaded before the next turn, as after SIGHUP; may be called from any thread or signal handler."""
        self._reload_requested = True
        self.wake()

    def stop_on_signals(self) -> None:
        """Install signal handlers: SIGTERM ends the loop, a second one the process; SIGHUP reloads, SIGINT is ignored."""

        def terminate(signum: int, frame: object) -> None:
            del signum, frame
            if self._stopping:
                os._exit(128 + signal.SIGTERM)
            self.stop()

        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, lambda *_: self.request_reload())

    def send(self, shell: Shell, peer: Service, body: msgspec.Struct, traceparent: str = "") -> bool:
        """Send to a peer; False when it has not joined, or when its outbox is full, which calls `shell.congested`."""
        link = self.mailbox.links[peer]
        if not link.joined:
            return False
        if self.mailbox.send(peer, body, traceparent):
            return True
        shell.congested(peer)
        return False

    def run(self, shell: Shell) -> None:
        """Run turns until stopped, then close the shell and the mailbox.

        No turn follows while the shell is closed: whoever watches over the process is told so, and that this is no hang.
        """
        try:
            while not self._stopping:
                self.turn(shell)
        finally:
            for call in self._before_close:
                call(self._leaving_s)
            self._liveness.send_leaving(self._leaving_s)
            shell.close()
            self.mailbox.close()
            self._waker.close()
            self._wake.close()

    def turn(self, shell: Shell) -> None:
        """Wait for mail for as long as nothing is due; then take it, do the shell's work, and send."""
        self._take_mail(shell, self.pause_ms())
        if self._reload_requested:
            self._reload_requested = False
            if self._reload is not None:
                self._reload()
        now_ns = time.monotonic_ns()
        self._liveness.tick(shell, now_ns)
        self._next_turn_ns = shell.advance(now_ns)
        for call in self._each_turn:
            call(now_ns)
        for identity, asked in self._inspections:
            self.mailbox.answer_inspector(identity, self._answer_inspect(shell, asked))
        self._inspections.clear()
        self._liveness.state_changed(shell.state())
        self._flush()

    def pause_ms(self) -> float:
        """Milliseconds that the next turn may wait for mail before a timer is due."""
        now_ns = time.monotonic_ns()
        until = self._liveness.due_ns - now_ns
        if self._next_turn_ns is not None:
            until = min(until, self._next_turn_ns - now_ns)
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
            self._inspections.append((identity, body))
            return
        if not self._liveness.handle(shell, header, body):
            return
        if isinstance(body, Drain):
            shell.drain(body.timeout_ms)
            return
        shell.receive(Service(header.sender), header, body)

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

    def _answer_inspect(self, shell: Shell, asked: Inspect) -> Snapshot:
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
            **{name: counts() for name, counts in self._snapshot_entries.items()},
            **(self._answer(about) if about and self._answer is not None else shell.snapshot()),
        }
        return Snapshot(self.service.value, os.getpid(), shell.state(), msgspec.json.encode(content))
