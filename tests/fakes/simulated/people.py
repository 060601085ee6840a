"""Clients: the product's own `ClientProtocol` on a simulated connection, with people behind it who read slowly or go away."""

from typing import Final

import msgspec
import zmq
from fakes.simulated.clock import MILLISECOND, SECOND, Agenda, Clock
from fakes.simulated.network import Dealer, Frames, Network, Owner
from fakes.simulated.wishes import Read, Wish

from noria.client.call import Call, CallPhase
from noria.client.errors import ClientError, Refused
from noria.client.protocol import ClientProtocol
from noria.client.timeouts import ClientTimeouts
from noria.proto.base import Header
from noria.proto.frontdoor import TO_CLIENT, Code
from noria.proto.wire import Codec

_CODEC: Final = Codec(TO_CLIENT)
_TICK_NS: Final = 60 * MILLISECOND
_RETRY_NS: Final = 150 * MILLISECOND
PATIENCE: Final = ClientTimeouts(
    accept_s=60.0,
    answer_s=60.0,
    ping_s=0.5,
    silence_s=0.8,
    reconnect_s=60.0,
    resend_s=0.2,
    resend_max_s=1.0,
    leave_s=60.0,
)
_AGAIN: Final = (Code.NOT_READY, Code.OVERLOADED, Code.QUOTA)


class Person(Owner):
    """One client process after another, under one name or several; gone: there is no next one.

    gullible: what it is told must be right; else it leaves when it is not.
    """

    def __init__(
        self, name: str, endpoint: str, network: Network, agenda: Agenda, clock: Clock, wishes: list[Wish]
    ) -> None:
        self.name = f"client-{name}"
        self.wishes = wishes
        self.gone = False
        self.gullible = True
        self._endpoint = endpoint
        self.slow = 0
        self._network = network
        self._agenda = agenda
        self._clock = clock
        self._draw = network.chance.draw
        self._deaf_until_ns = 0
        self._reading = False
        for wish in wishes:
            agenda.at(wish.at_ns, lambda wish=wish: self._begin(wish))  # type: ignore[misc]  # a default binds it
        self._live()

    def _live(self) -> None:
        """Begin a life, and look for the front door."""
        self.alive = True
        self._incarnation = self._draw.getrandbits(62) | 1
        self._sequence = 0
        self.protocol = ClientProtocol(PATIENCE, self._send)
        self._dealer = Dealer(self._network, self, self.name.encode())
        self._dealer.connect(self._endpoint)
        incarnation = self._incarnation
        self._agenda.after(_TICK_NS, lambda: self._tick(incarnation))

    def die(self, away_ns: int, name: str) -> None:
        """End without a word; a successor of that name comes after a while and asks for the same again."""
        if not self.alive:
            return
        self.alive = False
        self._dealer.close()
        self._agenda.after(away_ns, lambda: self._succeed(f"client-{name}"))

    def _succeed(self, name: str) -> None:
        if self.gone:
            return
        self.name = name
        self._live()
        for wish in self.wishes:
            if wish.over or wish.at_ns > self._clock.now_ns:
                continue
            if wish.cancelled:
                # It does not know of the request that its predecessor gave up.
                wish.left = True
                continue
            wish.call = None
            self._begin(wish)

    def wake(self) -> None:
        """There is mail: read it now or, when slow, much later."""
        if self._reading or not self.alive:
            return
        self._reading = True
        chance = self._network.chance
        if self._clock.now_ns >= self._deaf_until_ns and chance.happens(chance.slow_readers):
            self.slow += 1
            self._deaf_until_ns = self._clock.now_ns + chance.between(0, 700 * MILLISECOND)
        self._agenda.at(max(self._deaf_until_ns, self._clock.now_ns + MILLISECOND // 2), self._read)

    def writable(self, dealer: Dealer) -> None:
        """A connection, or room on it."""
        if self.alive:
            self.protocol.connected(self._now_s())

    def leave(self) -> None:
        """Go away without a word."""
        self.gone, self.alive = True, False
        self._dealer.close()
        for wish in self.wishes:
            wish.left = wish.left or not wish.over

    def _now_s(self) -> float:
        return self._clock.now_ns / SECOND

    def _send(self, body: msgspec.Struct, traceparent: str) -> bool:
        header = Header(type(body).__name__, self.name, self._incarnation, 0, self._sequence + 1, traceparent)
        try:
            self._dealer.send_multipart(_CODEC.encode(header, body), zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._sequence += 1
        return True

    def _begin(self, wish: Wish) -> None:
        if not self.alive or wish.call is not None or wish.over:
            return
        wish.tries += 1
        wish.begun_ns = wish.begun_ns or self._clock.now_ns
        wish.reads = [Read() for _ in range(wish.request.n)]
        wish.call = self.protocol.begin(wish.request, "", self._now_s())

    def _read(self) -> None:
        self._reading = False
        if not self.alive:
            return
        while self._dealer.inbox:
            frames: Frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            header = _CODEC.header(frames)
            self.protocol.receive(header, _CODEC.body(header, frames), self._now_s())
        self.protocol.flush_acknowledgements()
        self._look()

    def _tick(self, incarnation: int) -> None:
        if not self.alive or incarnation != self._incarnation:
            return
        self.protocol.tick(self._now_s())
        self._look()
        if self.protocol.calls or not all(wish.over for wish in self.wishes):
            self._agenda.after(_TICK_NS, lambda: self._tick(incarnation))

    def _look(self) -> None:
        for wish in self.wishes:
            if wish.call is None or wish.over:
                continue
            try:
                self._look_at(wish, wish.call)
            except AssertionError:
                if self.gullible:
                    raise
                wish.left = True
                self.protocol.leave(wish.call, self._now_s())

    def _look_at(self, wish: Wish, call: Call) -> None:
        while (delta := call.read()) is not None:
            read = wish.reads[delta.index]
            assert not read.end, f"{wish.request.id}: news after the end"
            if delta.attempt > read.attempt:
                read.attempt = delta.attempt
                del read.ids[delta.start :], read.logprobs[delta.start :]
                read.text = read.text[: delta.characters]
            assert delta.start == len(read.ids), f"{wish.request.id}: ids from {delta.start} after {len(read.ids)}"
            assert delta.characters == len(read.text), f"{wish.request.id}: text does not continue"
            read.ids += delta.token_ids
            read.text += delta.text
            read.logprobs += delta.logprobs
            if delta.finish is not None:
                read.end, read.matched = delta.finish.reason, delta.finish.matched
                read.output_tokens = delta.finish.output_tokens
        if call.error is not None:
            self._failed(wish, call.error)
            return
        if wish.cancel_after is None or wish.cancelled or call.phase is not CallPhase.OPEN:
            return
        if sum(len(read.ids) for read in wish.reads) >= wish.cancel_after:
            wish.cancelled = True
            if wish.abandoning:
                wish.left = True
                self.protocol.leave(call, self._now_s())
            else:
                self.protocol.cancel(call, self._now_s())

    def _failed(self, wish: Wish, error: ClientError) -> None:
        assert isinstance(error, Refused), f"{wish.request.id}: {type(error).__name__}: {error}"
        assert not any(read.ids for read in wish.reads), f"{wish.request.id} was refused after it had begun: {error}"
        assert wish.call is not None
        if wish.call.accepted is None and error.code in _AGAIN:
            # Under a name of its own: the server may have taken one of the repetitions of the first meanwhile, which is
            # cancelled as unwanted as soon as this shows.
            wish.request = msgspec.structs.replace(wish.request, id=f"{wish.request.id.split('/')[0]}/{wish.tries}")
            wish.call, wish.begun_ns = None, 0
            self._agenda.after(_RETRY_NS, lambda: self._begin(wish))
            return
        wish.refused = error
