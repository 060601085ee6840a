"""A simulated client: the product's own `ClientProtocol` on a simulated connection; it may read slowly, die or leave."""

from typing import Final

import msgspec
import zmq
from fakes.simulated.machine.clock import MILLISECOND, SECOND, EventQueue, SimulatedClock
from fakes.simulated.machine.network import Dealer, Frames, Network, SocketOwner
from fakes.simulated.scenario.issued_requests import ChoiceOutput, IssuedRequest

from noria.client.call import Call, CallStatus
from noria.client.errors import ClientError, Refused
from noria.client.protocol import ClientProtocol
from noria.client.timeouts import ClientTimeouts
from noria.proto.base import Header
from noria.proto.frontdoor import TO_CLIENT, Code
from noria.proto.wire import Codec

_CODEC: Final = Codec(TO_CLIENT)
_TICK_NS: Final = 60 * MILLISECOND
_RETRY_NS: Final = 150 * MILLISECOND
TIMEOUTS: Final = ClientTimeouts(
    accept_s=60.0,
    answer_s=60.0,
    ping_s=0.5,
    silence_s=0.8,
    reconnect_s=60.0,
    resend_s=0.2,
    resend_max_s=1.0,
    leave_s=60.0,
)
_RETRIED_CODES: Final = (Code.NOT_READY, Code.OVERLOADED, Code.QUOTA)


class SimulatedClient(SocketOwner):
    """One client process after another, under one name or several.

    left_for_good: there is no next process. expects_correct_answers: an impossible answer fails the simulation; otherwise
    the client gives the request up.
    """

    def __init__(
        self,
        name: str,
        endpoint: str,
        network: Network,
        queue: EventQueue,
        clock: SimulatedClock,
        issued_requests: list[IssuedRequest],
    ) -> None:
        self.name = f"client-{name}"
        self.issued_requests = issued_requests
        self.left_for_good = False
        self.expects_correct_answers = True
        self._endpoint = endpoint
        self.slow = 0
        self._network = network
        self._queue = queue
        self._clock = clock
        self._draw = network.rates.draw
        self._not_reading_until_ns = 0
        self._reading = False
        for issued in issued_requests:
            queue.at(issued.at_ns, lambda issued=issued: self._begin(issued))  # type: ignore[misc]  # a default binds it
        self._start()

    def _start(self) -> None:
        """Start a process of this client and connect to the public mailbox."""
        self.alive = True
        self._incarnation = self._draw.getrandbits(62) | 1
        self._sequence = 0
        self.protocol = ClientProtocol(TIMEOUTS, self._send)
        self._dealer = Dealer(self._network, self, self.name.encode())
        self._dealer.connect(self._endpoint)
        incarnation = self._incarnation
        self._queue.after(_TICK_NS, lambda: self._tick(incarnation))

    def die(self, away_ns: int, name: str) -> None:
        """Kill the process; a successor of that name starts after a while and issues the same requests again."""
        if not self.alive:
            return
        self.alive = False
        self._dealer.close()
        self._queue.after(away_ns, lambda: self._start_successor(f"client-{name}"))

    def _start_successor(self, name: str) -> None:
        if self.left_for_good:
            return
        self.name = name
        self._start()
        for issued in self.issued_requests:
            if issued.over or issued.at_ns > self._clock.now_ns:
                continue
            if issued.cancelled:
                # The successor does not know of the request that its predecessor gave up.
                issued.left = True
                continue
            issued.call = None
            self._begin(issued)

    def wake(self) -> None:
        """Read the mail that has arrived; a slow reader does so much later."""
        if self._reading or not self.alive:
            return
        self._reading = True
        rates = self._network.rates
        if self._clock.now_ns >= self._not_reading_until_ns and rates.happens(rates.slow_readers):
            self.slow += 1
            self._not_reading_until_ns = self._clock.now_ns + rates.between(0, 700 * MILLISECOND)
        self._queue.at(max(self._not_reading_until_ns, self._clock.now_ns + MILLISECOND // 2), self._read)

    def writable(self, dealer: Dealer) -> None:
        """Tell the exchange that it may send."""
        if self.alive:
            self.protocol.connected(self._now_s())

    def leave(self) -> None:
        """End the client for good, without a word to the server."""
        self.left_for_good, self.alive = True, False
        self._dealer.close()
        for issued in self.issued_requests:
            issued.left = issued.left or not issued.over

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

    def _begin(self, issued: IssuedRequest) -> None:
        if not self.alive or issued.call is not None or issued.over:
            return
        issued.tries += 1
        issued.begun_ns = issued.begun_ns or self._clock.now_ns
        issued.outputs = [ChoiceOutput() for _ in range(issued.request.n)]
        issued.call = self.protocol.begin(issued.request, "", self._now_s())

    def _read(self) -> None:
        self._reading = False
        if not self.alive:
            return
        while self._dealer.inbox:
            frames: Frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            header = _CODEC.header(frames)
            self.protocol.receive(header, _CODEC.body(header, frames), self._now_s())
        self.protocol.flush_acknowledgements()
        self._read_calls()

    def _tick(self, incarnation: int) -> None:
        if not self.alive or incarnation != self._incarnation:
            return
        self.protocol.tick(self._now_s())
        self._read_calls()
        if self.protocol.calls or not all(issued.over for issued in self.issued_requests):
            self._queue.after(_TICK_NS, lambda: self._tick(incarnation))

    def _read_calls(self) -> None:
        for issued in self.issued_requests:
            if issued.call is None or issued.over:
                continue
            try:
                self._read_call(issued, issued.call)
            except AssertionError:
                if self.expects_correct_answers:
                    raise
                issued.left = True
                self.protocol.leave(issued.call, self._now_s())

    def _read_call(self, issued: IssuedRequest, call: Call) -> None:
        while (delta := call.read()) is not None:
            output = issued.outputs[delta.index]
            assert not output.end, f"{issued.request.id}: a delta after the end"
            if delta.attempt > output.attempt:
                output.attempt = delta.attempt
                del output.ids[delta.start :], output.logprobs[delta.start :]
                output.text = output.text[: delta.characters]
            assert delta.start == len(output.ids), (
                f"{issued.request.id}: ids from {delta.start} after {len(output.ids)}"
            )
            assert delta.characters == len(output.text), f"{issued.request.id}: text does not continue"
            output.ids += delta.token_ids
            output.text += delta.text
            output.logprobs += delta.logprobs
            if delta.finish is not None:
                output.end, output.matched = delta.finish.reason, delta.finish.matched
                output.output_tokens = delta.finish.output_tokens
        if call.error is not None:
            self._failed(issued, call.error)
            return
        if issued.cancel_after is None or issued.cancelled or call.phase is not CallStatus.OPEN:
            return
        if sum(len(output.ids) for output in issued.outputs) >= issued.cancel_after:
            issued.cancelled = True
            if issued.abandons_when_cancelled:
                issued.left = True
                self.protocol.leave(call, self._now_s())
            else:
                self.protocol.cancel(call, self._now_s())

    def _failed(self, issued: IssuedRequest, error: ClientError) -> None:
        assert isinstance(error, Refused), f"{issued.request.id}: {type(error).__name__}: {error}"
        assert not any(output.ids for output in issued.outputs), (
            f"{issued.request.id} was refused after it had begun: {error}"
        )
        assert issued.call is not None
        if issued.call.accepted is None and error.code in _RETRIED_CODES:
            # With a new id: the server may have accepted a copy of the first request meanwhile, which is cancelled as unwanted
            # as soon as that shows.
            issued.request = msgspec.structs.replace(
                issued.request, id=f"{issued.request.id.split('/')[0]}/{issued.tries}"
            )
            issued.call, issued.begun_ns = None, 0
            self._queue.after(_RETRY_NS, lambda: self._begin(issued))
            return
        issued.refused = error
