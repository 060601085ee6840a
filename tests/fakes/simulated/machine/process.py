"""A simulated process of a service: the product's own shell, actor and mailbox on simulated sockets.

A turn of the actor is atomic, except that the process may die at any message that it sends. Greetings,
heartbeats, incarnations, sequence numbers, outboxes and batching are the product's own code.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import zmq
from fakes.simulated.machine.clock import MICROSECOND, EventQueue, SimulatedClock
from fakes.simulated.machine.network import Dealer, Frames, Network, ProcessKilled, Router, SocketOwner

from noria.proto.base import Service
from noria.shared.actor.actor import Actor
from noria.shared.actor.mailbox import Mailbox
from noria.shared.actor.shell import Shell
from noria.shared.config.config import RuntimeSettings

_TURN_NS_MAX = 200 * MICROSECOND


class SimulatedContext:
    """Stands in for zmq.Context: makes simulated sockets."""

    def __init__(self, network: Network, owner: SocketOwner) -> None:
        self._network = network
        self._owner = owner

    def socket(self, kind: int) -> Router | Dealer:
        """Make a new socket of the process."""
        return Router(self._network, self._owner) if kind == zmq.ROUTER else Dealer(self._network, self._owner)


class SimulatedPoller:
    """Stands in for zmq.Poller: reports sockets with mail without waiting; the network asks which of them want to write."""

    def __init__(self) -> None:
        self._sources: dict[Any, int] = {}

    def register(self, source: Any, flags: int) -> None:
        self._sources[source] = flags

    def unregister(self, source: Any) -> None:
        del self._sources[source]

    def wants_room(self, source: Any) -> bool:
        return self._sources.get(source) == zmq.POLLOUT

    def poll(self, timeout: int) -> list[tuple[Any, int]]:
        del timeout
        return [(each, zmq.POLLIN) for each in self._sources if isinstance(each, Router) and each.inbox]

    def has_mail(self) -> bool:
        return any(isinstance(each, Router) and each.inbox for each in self._sources)


class SimulatedActor(Actor):
    """The product's actor, whose turns the simulation makes."""

    def __init__(self, mailbox: Mailbox, settings: RuntimeSettings, wake: Callable[[], None]) -> None:
        super().__init__(mailbox, settings)
        self._waker.close()
        self._wake.close()
        self.poller = SimulatedPoller()
        self.poller.register(mailbox.router, zmq.POLLIN)
        self._poller = self.poller  # type: ignore[assignment]  # it does what is asked of one
        self._wake_soon = wake

    @property
    def stopping(self) -> bool:
        """Whether the shell has ended the loop."""
        return self._stopping

    def wake(self) -> None:
        """Schedule a turn."""
        self._wake_soon()


class SimulatedProcess(SocketOwner):
    """A process from its start to its death.

    sends_before_death: how many more messages it sends before it dies; None for no planned death. on_error: returns whether
    the process dies of an exception; the simulation fails where it does not.
    """

    def __init__(self, service: Service, network: Network, queue: EventQueue, clock: SimulatedClock) -> None:
        self.service = service
        self.name = service.value
        self.network = network
        self.context = SimulatedContext(network, self)
        self.alive = True
        self.sends_before_death: int | None = None
        self.paused_until_ns = 0
        self.on_turn: Callable[[SimulatedProcess], None] = lambda process: None
        self.on_death: Callable[[SimulatedProcess], None] = lambda process: None
        self.on_error: Callable[[SimulatedProcess, Exception], bool] = lambda process, error: False
        self.on_send: Callable[[SimulatedProcess, str, Frames], None] = lambda process, to, frames: None
        self._queue = queue
        self._clock = clock
        self._turn_ns: int | None = None
        self._closing = False
        self.mailbox: Mailbox
        self.actor: SimulatedActor
        self.shell: Shell

    def begin(
        self,
        peers: dict[Service, str],
        endpoint: str,
        settings: RuntimeSettings,
        build: Callable[["SimulatedProcess"], Shell],
    ) -> None:
        """Bind the mailbox and start the shell, as `noria.shared.process.service_process.run` does."""
        self.mailbox = Mailbox(self.service, endpoint, peers, settings, self.context)  # type: ignore[arg-type]  # as zmq's
        self.actor = SimulatedActor(self.mailbox, settings, self.wake)
        self.shell = build(self)
        self.wake()

    def wake(self) -> None:
        """Schedule a turn of the actor."""
        self._turn_at(self._clock.now_ns + self.network.rates.between(1, _TURN_NS_MAX))

    def writable(self, dealer: Dealer) -> None:
        """Wake the process when its poller waits for this socket to be writable."""
        if self.alive and self.actor.poller.wants_room(dealer):
            self.wake()

    def sends(self, name: str, frames: Frames) -> None:
        """Report a message that is about to be sent. Raises ProcessKilled instead when the process is to die now."""
        self.die_if_due()
        self.on_send(self, name, frames)

    def die_if_due(self) -> None:
        """Count one visible action. Raises ProcessKilled before it when the process is to die now."""
        if self.sends_before_death is not None:
            self.sends_before_death -= 1
            if self.sends_before_death <= 0:
                raise ProcessKilled

    def stop(self) -> None:
        """Ask the process to end in order, as SIGTERM does."""
        if self.alive:
            self.actor.stop()

    def die(self) -> None:
        """Kill the process: its sockets close, and nothing is cleaned up."""
        if not self.alive:
            return
        self.alive = False
        self.mailbox.close()
        for source in list(self.actor.poller._sources):
            if isinstance(source, Router):
                source.close()
        self.on_death(self)

    def _close(self) -> None:
        """Close the shell after the loop has ended; the process may be killed meanwhile."""
        self._closing = True
        with contextlib.suppress(ProcessKilled):
            self.shell.close()
        self.die()

    def _turn_at(self, at_ns: int) -> None:
        at_ns = max(at_ns, self.paused_until_ns)
        if self.alive and not self._closing and (self._turn_ns is None or at_ns < self._turn_ns):
            self._turn_ns = at_ns
            self._queue.at(at_ns, lambda: self._turn(at_ns))

    def _turn(self, at_ns: int) -> None:
        if not self.alive or self._closing or self._turn_ns != at_ns:
            return
        self._turn_ns = None
        if self._clock.now_ns < self.paused_until_ns:
            self._turn_at(self.paused_until_ns)
            return
        try:
            self.actor.turn(self.shell)
        except ProcessKilled:
            self.die()
            return
        except Exception as error:
            if not self.on_error(self, error):
                raise
            self.die()
            return
        self.on_turn(self)
        if self.actor.stopping:
            self._close()
        elif self.actor.poller.has_mail():
            self.wake()
        else:
            self._turn_at(self._clock.now_ns + max(int(self.actor.pause_ms() * 1e6), 1))
