"""Sockets without a kernel: what ZeroMQ's ROUTER and DEALER do to messages, and everything they may do to them.

A dealer has at most one connection, to whoever has bound its endpoint, and sees the end of one before it makes the next.
Within a connection messages stay in order and none is lost; when it breaks, a tail of what was on the way is lost on
either side. What a dead process had not read may reach its successor. A full connection and one that is not there take
nothing (`zmq.Again`).
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq
from fakes.simulated.chance import Chance
from fakes.simulated.clock import MILLISECOND, Agenda, Clock

_RECONNECT_NS_MAX: Final = 80 * MILLISECOND
_CLIENT_MESSAGES_MAX: Final = 1000
_POLL_S: Final = 0.001
Frames = list[bytes]


class Owner:
    """The process that sockets belong to: it is woken by mail and may die in the middle of sending."""

    name = ""
    alive = True

    def wake(self) -> None:
        """There is mail."""

    def writable(self, dealer: "Dealer") -> None:
        """A dealer has a connection, or room again."""

    def sends(self, name: str, frames: Frames) -> None:
        """It is about to send. May raise Died."""


class Died(BaseException):
    """The process ends here, without a word. No handler in the product may catch this."""


class Channel:
    """One direction of a connection."""

    def __init__(
        self,
        network: "Network",
        limit: int,
        land: Callable[[Frames, "Channel"], None],
        room: Callable[[], None] = lambda: None,
    ) -> None:
        self._network = network
        self._room = room
        self._limit = limit
        self._land = land
        self.last_ns = 0
        self.flying: deque[Frames] = deque()
        self.unread = 0

    @property
    def full(self) -> bool:
        """Whether it takes nothing more for now."""
        return len(self.flying) + self.unread >= self._limit

    def push(self, frames: Frames) -> None:
        """Send, once or twice."""
        chance = self._network.chance
        for _ in range(2 if chance.happens(chance.duplicate) else 1):
            delay_ns = chance.between(chance.delay_ns // 4, 2 * chance.delay_ns)
            if chance.happens(chance.stall):
                delay_ns += chance.between(0, chance.stall_ns)
            self.last_ns = max(self.last_ns, self._network.clock.now_ns + delay_ns)
            self.flying.append(frames)
            self._network.agenda.at(self.last_ns, self._arrive)

    def read(self) -> None:
        """The receiver has taken a message."""
        full = self.full
        self.unread -= 1
        if full:
            self._room()

    def lose(self) -> list[Frames]:
        """Lose a tail, perhaps empty, of what is on the way; returns it."""
        kept = self._network.chance.draw.randint(0, len(self.flying))
        lost = list(self.flying)[kept:]
        while len(self.flying) > kept:
            self.flying.pop()
        return lost

    def _arrive(self) -> None:
        if self.flying:
            self._land(self.flying.popleft(), self)


class Connection:
    """A dealer's connection to a router."""

    def __init__(self, network: "Network", dealer: "Dealer", router: "Router") -> None:
        limit = network.chance.high_water_mark if dealer.limited else _CLIENT_MESSAGES_MAX
        self.dealer = dealer
        self.router = router
        self.forward = Channel(network, limit, self._to_router, lambda: dealer.owner.writable(dealer))
        self.backward = Channel(network, router.limit, self._to_dealer)

    def part(self) -> None:
        """It is over for its dealer, which connects again only when it has seen the end: all that was still on the way."""
        self.dealer.connection = None
        self.dealer.parted_ns = max(self.dealer.parted_ns, self.backward.last_ns)

    def _to_router(self, frames: Frames, channel: Channel) -> None:
        identity = self.dealer.identity
        self.router.take(identity, self.router.network.alter(identity, frames), channel)

    def _to_dealer(self, frames: Frames, channel: Channel) -> None:
        self.dealer.take(frames, channel)


class Socket:
    """What both kinds have in common: mail that has arrived."""

    def __init__(self, network: "Network", owner: Owner) -> None:
        self.network = network
        self.owner = owner
        self.closed = False
        self.inbox: deque[tuple[Frames, Channel | None]] = deque()

    def setsockopt(self, option: int, value: int | bytes) -> None:
        """Everything is as the simulation will have it."""

    def recv_multipart(self, flags: int = 0) -> Frames:
        """The next message; zmq.Again without one."""
        assert flags & zmq.NOBLOCK
        if not self.inbox:
            raise zmq.Again
        frames, channel = self.inbox.popleft()
        if channel is not None:
            channel.read()
        return frames

    def poll(self, timeout_ms: int) -> int:
        """Wait for mail in the middle of a turn: everybody else goes on meanwhile. Raises Died when its process does not."""
        until_ns = self.network.clock.now_ns + timeout_ms * MILLISECOND
        while not self.inbox and self.network.clock.now_ns < until_ns:
            self.network.agenda.sleep(_POLL_S)
            if not self.owner.alive:
                raise Died
        return zmq.POLLIN if self.inbox else 0

    def _arrived(self, frames: Frames, channel: Channel | None) -> None:
        if self.closed:
            return
        if channel is not None:
            channel.unread += 1
        self.inbox.append((frames, channel))
        self.owner.wake()


class Router(Socket):
    """A bound socket."""

    def __init__(self, network: "Network", owner: Owner) -> None:
        super().__init__(network, owner)
        self.endpoint = ""
        self.limit = network.chance.door_messages_max
        self.connections: dict[bytes, Connection] = {}

    def bind(self, endpoint: str) -> None:
        """Be there for all dealers of the endpoint."""
        self.endpoint = endpoint
        self.network.bound(self)

    def take(self, identity: bytes, frames: Frames, channel: Channel | None) -> None:
        """A message has arrived."""
        self._arrived([identity, *frames], channel)

    def send_multipart(self, parts: Frames, flags: int = 0, copy: bool = True) -> None:
        """Answer on a dealer's own connection."""
        del copy
        assert flags & zmq.NOBLOCK
        identity, *frames = parts
        connection = self.connections.get(identity)
        if connection is None:
            raise zmq.ZMQError(errno.EHOSTUNREACH)
        if connection.backward.full:
            raise zmq.Again
        self.owner.sends(identity.decode(), frames)
        connection.backward.push(frames)

    def close(self, linger: int = 0) -> None:
        """Nobody is bound there any more."""
        del linger
        if not self.closed:
            self.closed = True
            self.network.unbound(self)


class Dealer(Socket):
    """A connecting socket. A client's is named at once, and never full in these short runs."""

    def __init__(self, network: "Network", owner: Owner, identity: bytes = b"") -> None:
        super().__init__(network, owner)
        self.identity = identity
        self.limited = not identity
        self.endpoint = ""
        self.connection: Connection | None = None
        self.parted_ns = 0

    def setsockopt(self, option: int, value: int | bytes) -> None:
        """The name is all that counts."""
        if option == zmq.ROUTING_ID:
            assert isinstance(value, bytes)
            self.identity = value

    def connect(self, endpoint: str) -> None:
        """Try until somebody is there, and again whenever the connection breaks."""
        self.endpoint = endpoint
        self.network.dialling(self)

    def take(self, frames: Frames, channel: Channel | None) -> None:
        """A message has arrived."""
        self._arrived(frames, channel)

    def send_multipart(self, frames: Frames, flags: int = 0, copy: bool = True) -> None:
        """Send; zmq.Again without a connection or without room."""
        del copy
        assert flags & zmq.NOBLOCK
        if self.connection is None or self.connection.forward.full:
            raise zmq.Again
        self.owner.sends(self.endpoint, frames)
        connection = self.connection
        connection.forward.push(frames)
        if self.network.chance.happens(self.network.chance.cut):
            self.network.cut(connection)

    def close(self, linger: int = 0) -> None:
        """The process is over, or leaves."""
        del linger
        if not self.closed:
            self.closed = True
            self.network.hung_up(self)


class Network:
    """All sockets, by endpoint."""

    def __init__(self, clock: Clock, agenda: Agenda, chance: Chance) -> None:
        self.clock = clock
        self.agenda = agenda
        self.chance = chance
        self._routers: dict[str, Router] = {}
        self._dealers: dict[str, list[Dealer]] = {}
        self._ghosts: dict[str, list[tuple[bytes, Frames]]] = {}
        self.alter: Callable[[bytes, Frames], Frames] = lambda sender, frames: frames

    def bound(self, router: Router) -> None:
        """Somebody is there: what its predecessor had not read may come first, then connections."""
        assert router.endpoint not in self._routers, "two processes at one endpoint"
        self._routers[router.endpoint] = router
        for identity, frames in self._ghosts.pop(router.endpoint, []):
            router.take(identity, frames, None)
        for dealer in self._dealers.get(router.endpoint, []):
            self._dial_soon(dealer)

    def unbound(self, router: Router) -> None:
        """A process has died or left."""
        if self._routers.get(router.endpoint) is router:
            del self._routers[router.endpoint]
        haunting = self.chance.happens(self.chance.haunt)
        ghosts = [(frames[0], frames[1:]) for frames, _ in router.inbox] if haunting else []
        for connection in list(router.connections.values()):
            lost = connection.forward.lose()
            connection.forward.flying.clear()
            connection.backward.lose()
            if haunting:
                ghosts += [(connection.dealer.identity, frames) for frames in lost]
            connection.part()
        router.connections.clear()
        self._ghosts[router.endpoint] = ghosts

    def dialling(self, dealer: Dealer) -> None:
        """A dealer looks for its endpoint."""
        self._dealers.setdefault(dealer.endpoint, []).append(dealer)
        self._dial_soon(dealer)

    def hung_up(self, dealer: Dealer) -> None:
        """A dealer's process has died or left: what it wrote last may not arrive."""
        self._dealers.get(dealer.endpoint, []).remove(dealer)
        connection = dealer.connection
        dealer.connection = None
        if connection is not None:
            connection.forward.lose()
            connection.backward.flying.clear()
            if connection.router.connections.get(dealer.identity) is connection:
                del connection.router.connections[dealer.identity]

    def cut(self, connection: Connection) -> None:
        """A connection breaks between two processes that live."""
        if connection.dealer.connection is not connection:
            return
        connection.part()
        connection.forward.lose()
        connection.backward.lose()
        if connection.router.connections.get(connection.dealer.identity) is connection:
            del connection.router.connections[connection.dealer.identity]
        self._dial_soon(connection.dealer)

    def _dial_soon(self, dealer: Dealer) -> None:
        at_ns = self.clock.now_ns + self.chance.between(MILLISECOND, _RECONNECT_NS_MAX)
        self.agenda.at(max(at_ns, dealer.parted_ns), lambda: self._dial(dealer))

    def _dial(self, dealer: Dealer) -> None:
        router = self._routers.get(dealer.endpoint)
        if dealer.closed or dealer.connection is not None or router is None:
            return
        old = router.connections.get(dealer.identity)
        if old is not None:  # handover: the newest connection of a name is the one
            old.part()
            old.forward.lose()
        dealer.connection = router.connections[dealer.identity] = Connection(self, dealer, router)
        dealer.owner.writable(dealer)
