"""Simulated ROUTER and DEALER sockets of ZeroMQ: delays, losses, duplicates and broken connections.

A dealer has at most one connection, to the router of its endpoint, and sees the end of one before it makes the next.
Within a connection messages stay in order and none is lost; when it breaks, a tail of what was on the way is lost on
either side. What a dead process had not read may reach its successor. A full connection and a missing one
raise `zmq.Again`.
"""

import errno
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq
from fakes.simulated.machine.clock import MILLISECOND, EventQueue, SimulatedClock
from fakes.simulated.machine.fault_rates import FaultRates

_RECONNECT_NS_MAX: Final = 80 * MILLISECOND
_CLIENT_MESSAGES_MAX: Final = 1000
_POLL_S: Final = 0.001
Frames = list[bytes]


class SocketOwner:
    """The process that owns sockets: it is woken by mail and may die in the middle of sending."""

    name = ""
    alive = True

    def wake(self) -> None:
        """Handle the arrival of mail."""

    def writable(self, dealer: "Dealer") -> None:
        """Handle a dealer that has a connection, or room again."""

    def sends(self, name: str, frames: Frames) -> None:
        """Handle a message that is about to be sent. May raise ProcessKilled."""


class ProcessKilled(BaseException):
    """The process is killed here. No handler in the product may catch this."""


class Channel:
    """One direction of a connection: messages in transit, in order, with a limit on how many."""

    def __init__(
        self,
        network: "Network",
        limit: int,
        deliver: Callable[[Frames, "Channel"], None],
        room: Callable[[], None] = lambda: None,
    ) -> None:
        self._network = network
        self._room = room
        self._limit = limit
        self._deliver = deliver
        self.last_ns = 0
        self.in_transit: deque[Frames] = deque()
        self.unread = 0

    @property
    def full(self) -> bool:
        """Whether the channel accepts no more messages for now."""
        return len(self.in_transit) + self.unread >= self._limit

    def push(self, frames: Frames) -> None:
        """Send a message; it may arrive late, or twice."""
        rates = self._network.rates
        for _ in range(2 if rates.happens(rates.duplicate) else 1):
            delay_ns = rates.between(rates.delay_ns // 4, 2 * rates.delay_ns)
            if rates.happens(rates.stall):
                delay_ns += rates.between(0, rates.stall_ns)
            self.last_ns = max(self.last_ns, self._network.clock.now_ns + delay_ns)
            self.in_transit.append(frames)
            self._network.queue.at(self.last_ns, self._arrive)

    def read(self) -> None:
        """Count one message as read by the receiver."""
        full = self.full
        self.unread -= 1
        if full:
            self._room()

    def lose(self) -> list[Frames]:
        """Lose the last messages in transit, perhaps none; returns them."""
        kept = self._network.rates.draw.randint(0, len(self.in_transit))
        lost = list(self.in_transit)[kept:]
        while len(self.in_transit) > kept:
            self.in_transit.pop()
        return lost

    def _arrive(self) -> None:
        if self.in_transit:
            self._deliver(self.in_transit.popleft(), self)


class Connection:
    """A connection from a dealer to a router: a channel each way."""

    def __init__(self, network: "Network", dealer: "Dealer", router: "Router") -> None:
        limit = network.rates.high_water_mark if dealer.limited else _CLIENT_MESSAGES_MAX
        self.dealer = dealer
        self.router = router
        self.forward = Channel(network, limit, self._to_router, lambda: dealer.owner.writable(dealer))
        self.backward = Channel(network, router.limit, self._to_dealer)

    def disconnect(self) -> None:
        """End the connection for its dealer, which connects again only after everything in transit has arrived."""
        self.dealer.connection = None
        self.dealer.disconnected_ns = max(self.dealer.disconnected_ns, self.backward.last_ns)

    def _to_router(self, frames: Frames, channel: Channel) -> None:
        identity = self.dealer.identity
        self.router.take(identity, self.router.network.alter(identity, frames), channel)

    def _to_dealer(self, frames: Frames, channel: Channel) -> None:
        self.dealer.take(frames, channel)


class Socket:
    """The part that both kinds of socket share: mail that has arrived."""

    def __init__(self, network: "Network", owner: SocketOwner) -> None:
        self.network = network
        self.owner = owner
        self.closed = False
        self.inbox: deque[tuple[Frames, Channel | None]] = deque()

    def setsockopt(self, option: int, value: int | bytes) -> None:
        """Ignore the option: the simulation decides limits and timeouts."""

    def recv_multipart(self, flags: int = 0) -> Frames:
        """Return the next message. Raises zmq.Again without one."""
        assert flags & zmq.NOBLOCK
        if not self.inbox:
            raise zmq.Again
        frames, channel = self.inbox.popleft()
        if channel is not None:
            channel.read()
        return frames

    def poll(self, timeout_ms: int) -> int:
        """Wait for mail in the middle of a turn while all others go on. Raises ProcessKilled when its process dies meanwhile."""
        until_ns = self.network.clock.now_ns + timeout_ms * MILLISECOND
        while not self.inbox and self.network.clock.now_ns < until_ns:
            self.network.queue.sleep(_POLL_S)
            if not self.owner.alive:
                raise ProcessKilled
        return zmq.POLLIN if self.inbox else 0

    def _arrived(self, frames: Frames, channel: Channel | None) -> None:
        if self.closed:
            return
        if channel is not None:
            channel.unread += 1
        self.inbox.append((frames, channel))
        self.owner.wake()


class Router(Socket):
    """A bound ROUTER socket."""

    def __init__(self, network: "Network", owner: SocketOwner) -> None:
        super().__init__(network, owner)
        self.endpoint = ""
        self.limit = network.rates.door_messages_max
        self.connections: dict[bytes, Connection] = {}

    def bind(self, endpoint: str) -> None:
        """Bind to an endpoint, so that its dealers connect."""
        self.endpoint = endpoint
        self.network.bound(self)

    def take(self, identity: bytes, frames: Frames, channel: Channel | None) -> None:
        """Receive a message from the network."""
        self._arrived([identity, *frames], channel)

    def send_multipart(self, parts: Frames, flags: int = 0, copy: bool = True) -> None:
        """Send to a dealer on its connection. Raises zmq.ZMQError without one, zmq.Again when it is full."""
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
    """A connecting DEALER socket. A client's has its identity at once, and is never full in these short runs."""

    def __init__(self, network: "Network", owner: SocketOwner, identity: bytes = b"") -> None:
        super().__init__(network, owner)
        self.identity = identity
        self.limited = not identity
        self.endpoint = ""
        self.connection: Connection | None = None
        self.disconnected_ns = 0

    def setsockopt(self, option: int, value: int | bytes) -> None:
        """Store the identity; ignore other options."""
        if option == zmq.ROUTING_ID:
            assert isinstance(value, bytes)
            self.identity = value

    def connect(self, endpoint: str) -> None:
        """Connect to an endpoint as soon as a router is there, and again whenever the connection breaks."""
        self.endpoint = endpoint
        self.network.connecting(self)

    def take(self, frames: Frames, channel: Channel | None) -> None:
        """Receive a message from the network."""
        self._arrived(frames, channel)

    def send_multipart(self, frames: Frames, flags: int = 0, copy: bool = True) -> None:
        """Send a message. Raises zmq.Again without a connection or without room."""
        del copy
        assert flags & zmq.NOBLOCK
        if self.connection is None or self.connection.forward.full:
            raise zmq.Again
        self.owner.sends(self.endpoint, frames)
        connection = self.connection
        connection.forward.push(frames)
        if self.network.rates.happens(self.network.rates.cut):
            self.network.cut(connection)

    def close(self, linger: int = 0) -> None:
        """Close the socket: its process has ended."""
        del linger
        if not self.closed:
            self.closed = True
            self.network.dealer_closed(self)


class Network:
    """All sockets by endpoint, and the messages between them. alter: may change a message as it arrives at a router."""

    def __init__(self, clock: SimulatedClock, queue: EventQueue, rates: FaultRates) -> None:
        self.clock = clock
        self.queue = queue
        self.rates = rates
        self._routers: dict[str, Router] = {}
        self._dealers: dict[str, list[Dealer]] = {}
        self._undelivered: dict[str, list[tuple[bytes, Frames]]] = {}
        self.alter: Callable[[bytes, Frames], Frames] = lambda sender, frames: frames

    def bound(self, router: Router) -> None:
        """Add a router: mail that its predecessor had not read may come first, then connections."""
        assert router.endpoint not in self._routers, "two processes at one endpoint"
        self._routers[router.endpoint] = router
        for identity, frames in self._undelivered.pop(router.endpoint, []):
            router.take(identity, frames, None)
        for dealer in self._dealers.get(router.endpoint, []):
            self._connect_soon(dealer)

    def unbound(self, router: Router) -> None:
        """Remove the router of a process that has ended."""
        if self._routers.get(router.endpoint) is router:
            del self._routers[router.endpoint]
        inherited = self.rates.happens(self.rates.inherited_mail)
        undelivered = [(frames[0], frames[1:]) for frames, _ in router.inbox] if inherited else []
        for connection in list(router.connections.values()):
            lost = connection.forward.lose()
            connection.forward.in_transit.clear()
            connection.backward.lose()
            if inherited:
                undelivered += [(connection.dealer.identity, frames) for frames in lost]
            connection.disconnect()
        router.connections.clear()
        self._undelivered[router.endpoint] = undelivered

    def connecting(self, dealer: Dealer) -> None:
        """Add a dealer and connect it to its endpoint."""
        self._dealers.setdefault(dealer.endpoint, []).append(dealer)
        self._connect_soon(dealer)

    def dealer_closed(self, dealer: Dealer) -> None:
        """Remove the dealer of a process that has ended: its last messages may not arrive."""
        self._dealers.get(dealer.endpoint, []).remove(dealer)
        connection = dealer.connection
        dealer.connection = None
        if connection is not None:
            connection.forward.lose()
            connection.backward.in_transit.clear()
            if connection.router.connections.get(dealer.identity) is connection:
                del connection.router.connections[dealer.identity]

    def cut(self, connection: Connection) -> None:
        """Break a connection between two running processes."""
        if connection.dealer.connection is not connection:
            return
        connection.disconnect()
        connection.forward.lose()
        connection.backward.lose()
        if connection.router.connections.get(connection.dealer.identity) is connection:
            del connection.router.connections[connection.dealer.identity]
        self._connect_soon(connection.dealer)

    def _connect_soon(self, dealer: Dealer) -> None:
        at_ns = self.clock.now_ns + self.rates.between(MILLISECOND, _RECONNECT_NS_MAX)
        self.queue.at(max(at_ns, dealer.disconnected_ns), lambda: self._connect(dealer))

    def _connect(self, dealer: Dealer) -> None:
        router = self._routers.get(dealer.endpoint)
        if dealer.closed or dealer.connection is not None or router is None:
            return
        old = router.connections.get(dealer.identity)
        if old is not None:  # handover: the newest connection of a name is the one
            old.disconnect()
            old.forward.lose()
        dealer.connection = router.connections[dealer.identity] = Connection(self, dealer, router)
        dealer.owner.writable(dealer)
