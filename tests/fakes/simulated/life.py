"""One life of one service's process: the product's own shell, actor and mailbox on simulated sockets.

A turn of the actor is atomic, except that the process may die at any message that it sends. Nothing is modelled twice:
greetings, heartbeats, incarnations, sequence numbers, outboxes and batching are the product's own code.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import zmq
from fakes.simulated.clock import MICROSECOND, Agenda, Clock
from fakes.simulated.network import Dealer, Died, Frames, Network, Owner, Router

from noria.proto.base import Service
from noria.shared.actor.actor import Actor
from noria.shared.actor.mailbox import Mailbox
from noria.shared.actor.shell import Shell
from noria.shared.config.config import RuntimeSettings

_TURN_NS_MAX = 200 * MICROSECOND


class Context:
    """Makes sockets as zmq.Context does."""

    def __init__(self, network: Network, owner: Owner) -> None:
        self._network = network
        self._owner = owner

    def socket(self, kind: int) -> Router | Dealer:
        """A new socket of the process."""
        return Router(self._network, self._owner) if kind == zmq.ROUTER else Dealer(self._network, self._owner)


class Poller:
    """Says at once which sockets have mail; which of them want room is asked by the network."""

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
    """The product's actor, turned by hand."""

    def __init__(self, mailbox: Mailbox, settings: RuntimeSettings, wake: Callable[[], None]) -> None:
        super().__init__(mailbox, settings)
        self._waker.close()
        self._wake.close()
        self.poller = Poller()
        self.poller.register(mailbox.router, zmq.POLLIN)
        self._poller = self.poller  # type: ignore[assignment]  # it does what is asked of one
        self._wake_soon = wake

    @property
    def stopping(self) -> bool:
        """Whether the shell has ended the loop."""
        return self._stopping

    def wake(self) -> None:
        """Begin a turn soon."""
        self._wake_soon()


class Life(Owner):
    """A process from start to death. `doomed`: how many more messages it sends before it dies, if it is to die.

    on_error: whether it may die of this exception.
    """

    def __init__(self, service: Service, network: Network, agenda: Agenda, clock: Clock) -> None:
        self.service = service
        self.name = service.value
        self.network = network
        self.context = Context(network, self)
        self.alive = True
        self.doomed: int | None = None
        self.paused_until_ns = 0
        self.on_turn: Callable[[Life], None] = lambda life: None
        self.on_death: Callable[[Life], None] = lambda life: None
        self.on_error: Callable[[Life, Exception], bool] = lambda life, error: False
        self.on_send: Callable[[Life, str, Frames], None] = lambda life, to, frames: None
        self._agenda = agenda
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
        build: Callable[["Life"], Shell],
    ) -> None:
        """Bind the mailbox and start the shell, as `noria.shared.process.service_process.run` does."""
        self.mailbox = Mailbox(self.service, endpoint, peers, settings, self.context)  # type: ignore[arg-type]  # as zmq's
        self.actor = SimulatedActor(self.mailbox, settings, self.wake)
        self.shell = build(self)
        self.wake()

    def wake(self) -> None:
        """Begin a turn in a moment."""
        self._turn_at(self._clock.now_ns + self.network.chance.between(1, _TURN_NS_MAX))

    def writable(self, dealer: Dealer) -> None:
        """As a poller that was asked for POLLOUT: wake for room, and only then."""
        if self.alive and self.actor.poller.wants_room(dealer):
            self.wake()

    def sends(self, name: str, frames: Frames) -> None:
        """Every message may be the last."""
        self.may_die()
        self.on_send(self, name, frames)

    def may_die(self) -> None:
        """It does something that others can see. May raise Died, before it is done."""
        if self.doomed is not None:
            self.doomed -= 1
            if self.doomed <= 0:
                raise Died

    def stop(self) -> None:
        """Ask it to end in order, as SIGTERM does."""
        if self.alive:
            self.actor.stop()

    def die(self) -> None:
        """End without a word: the sockets are closed by the kernel, nothing is tidied up."""
        if not self.alive:
            return
        self.alive = False
        self.mailbox.close()
        for source in list(self.actor.poller._sources):
            if isinstance(source, Router):
                source.close()
        self.on_death(self)

    def _close(self) -> None:
        """The loop has ended: the shell closes, and may be killed while it does."""
        self._closing = True
        with contextlib.suppress(Died):
            self.shell.close()
        self.die()

    def _turn_at(self, at_ns: int) -> None:
        at_ns = max(at_ns, self.paused_until_ns)
        if self.alive and not self._closing and (self._turn_ns is None or at_ns < self._turn_ns):
            self._turn_ns = at_ns
            self._agenda.at(at_ns, lambda: self._turn(at_ns))

    def _turn(self, at_ns: int) -> None:
        if not self.alive or self._closing or self._turn_ns != at_ns:
            return
        self._turn_ns = None
        if self._clock.now_ns < self.paused_until_ns:
            self._turn_at(self.paused_until_ns)
            return
        try:
            self.actor.turn(self.shell)
        except Died:
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
