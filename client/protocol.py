"""The protocol of one client: what is sent for each request and when again, and what each message of the server does.

Time arrives as an argument and messages leave through a function, so this holds no socket and reads no clock.

How an answer survives: everything asked is idempotent. `Generate` is repeated until it is answered; an open call that
hears nothing asks again by `Attach` with what it has. A reconnect or a new incarnation in a header makes all calls ask
at once. What cannot be sent is not queued: it is asked again later.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from noria.client.call import Call, CallStatus
from noria.client.errors import Closed, Interrupted, Malformed, Refused, Superseded, Unreachable
from noria.client.server_incarnations import SenderStatus, ServerIncarnations
from noria.client.timeouts import ClientTimeouts
from noria.proto import frontdoor
from noria.proto.base import Header
from noria.proto.frontdoor import (
    Accepted,
    Acknowledge,
    Attach,
    Cancel,
    Code,
    Generate,
    Ping,
    Rejected,
    Updates,
)

Send = Callable[[msgspec.Struct, str], bool]
_PINGS_PER_TIMEOUT: Final = 3


class ClientProtocol:
    """The state of all requests of one client, without socket or clock."""

    def __init__(self, timeouts: ClientTimeouts, send: Send) -> None:
        self.calls: dict[str, Call] = {}
        self._timeouts = timeouts
        self._send = send
        self._server = ServerIncarnations(timeouts.resend_s)
        self._pinged_s = 0.0
        self._ping_s = timeouts.ping_s
        self._to_acknowledge: dict[str, None] = {}
        self._to_cancel: dict[str, None] = {}

    def begin(self, generate: Generate, traceparent: str, now_s: float) -> Call:
        """Start a call. Raises Refused for a different request under a live id, and when too many are under way."""
        known = self.calls.get(generate.id)
        if known is not None and known.phase is not CallStatus.ABANDONED:
            if known.generate != generate and not known.joined:
                raise Refused(Code.CONFLICT, "another request with this id is under way", "id")
            known.fail(Superseded("the same request was made again; the newer one has taken over its answer"))
        if len(self.calls) >= self._timeouts.calls_max:
            raise Refused(Code.OVERLOADED, f"{len(self.calls)} requests are under way in this client", "", 1000)
        return self._begin(Call(generate, traceparent, now_s), now_s)

    def join(self, call: Call, now_s: float) -> None:
        """Read a request that was made by another. Raises Refused where too many are under way."""
        known = self.calls.get(call.id)
        if known is not None:
            self._forget(known)
            known.fail(Superseded("the same request was asked for again; the newer one has taken over its answer"))
        if len(self.calls) >= self._timeouts.calls_max:
            raise Refused(Code.OVERLOADED, f"{len(self.calls)} requests are under way in this client", "", 1000)
        self._begin(call, now_s)

    def _begin(self, call: Call, now_s: float) -> Call:
        # Asked before it is listed: should this very message find a new connection, all listed calls are asked over it.
        self._ask(call, now_s)
        self.calls[call.id] = call
        self._to_cancel.pop(call.id, None)
        return call

    def cancel(self, call: Call, now_s: float) -> None:
        """Ask the server to cancel a call that is still read: its choices then finish as `cancelled`."""
        if call.phase not in (CallStatus.OPENING, CallStatus.OPEN):
            return
        call.cancelling = True
        if call.sent:
            self._send(_cancel(call), "")
            call.next_ask_s = now_s + self._timeouts.resend_s
        else:
            self._forget(call)
            call.cancelled(over=True)

    def leave(self, call: Call, now_s: float) -> None:
        """Stop reading a call: cancel it, and remember it only until its end is confirmed."""
        if call.phase in (CallStatus.ABANDONED, CallStatus.OVER):
            return
        if call.outlives_reader:
            # The server keeps it for a while, in case it is asked for again under the same id.
            self._send(_cancel(call, left=True), "")
            self._forget(call)
            call.cancelled(over=True)
            return
        self.cancel(call, now_s)
        if call.sent:
            call.left_s = now_s
            call.cancelled(over=False)

    def connected(self, now_s: float) -> None:
        """Ask again for every call over a (new) connection, since messages over an older one may be lost."""
        self._server.connected_s = now_s
        for call in list(self.calls.values()):
            call.asks = 0
            self._ask(call, now_s)

    def receive(self, header: Header, body: msgspec.Struct, now_s: float) -> None:
        """Handle one message of the server."""
        status = self._server.observe(header.incarnation, now_s)
        if status is SenderStatus.STALE:
            return
        if status is SenderStatus.RESTARTED:
            self.connected(now_s)
        match body:
            case Accepted():
                self._accepted(body, now_s)
            case Rejected():
                self._rejected(body, now_s)
            case Updates():
                for delta in body.deltas:
                    self._delta(delta, now_s)
                for finished in body.finished:
                    self._finished(finished, now_s)
            case frontdoor.Malformed():
                self._malformed(body)
            case _:
                pass  # a status of life

    def flush_acknowledgements(self) -> None:
        """Acknowledge the ends in the last burst of messages, and cancel requests in it that nobody here reads."""
        if self._to_acknowledge and self._send(Acknowledge(tuple(self._to_acknowledge)), ""):
            self._to_acknowledge.clear()
        for identity in self._to_cancel:
            # A request that was left on purpose, to be asked for again, may be among them: that one goes on for a while.
            self._send(Cancel(identity, left=True), "")
        self._to_cancel.clear()

    def tick(self, now_s: float) -> None:
        """Ping the server, ask again for calls that are due, and fail those out of time; to be called about once a second."""
        self.flush_acknowledgements()
        if not self.calls:
            return
        if now_s - self._pinged_s >= self._ping_s:
            self._pinged_s = now_s
            self._send(Ping(), "")
        for call in list(self.calls.values()):
            trouble = self._timeouts.give_up_reason(call, self._server.heard_s, now_s)
            if trouble:
                self._forget(call)
                call.fail(Unreachable(trouble))
            elif now_s >= call.next_ask_s:
                self._ask(call, now_s)

    def close(self) -> None:
        """Cancel everything; readers get what has arrived, then `Closed`."""
        self.flush_acknowledgements()
        for call in list(self.calls.values()):
            if call.sent:
                self._send(_cancel(call, left=call.outlives_reader), "")
            self._forget(call)
            call.fail(Closed("the client was closed"))

    def _ask(self, call: Call, now_s: float) -> None:
        message: msgspec.Struct
        match call.phase:
            case CallStatus.OPENING:
                message = call.generate
            case CallStatus.OPEN:
                message = Attach(call.id, call.have(), call.generate.credential)
            case CallStatus.ABANDONED:
                message = _cancel(call)
            case CallStatus.OVER:
                return
        sent = self._send(message, call.traceparent)
        if sent and call.phase is CallStatus.ABANDONED:
            # Its end may have been sent over a connection that is gone: `Attach` has it sent again, or NOT_FOUND.
            self._send(Attach(call.id, call.have(), call.generate.credential), "")
        elif sent and call.cancelling:
            self._send(_cancel(call), "")
        call.sent = call.sent or sent
        call.asks += 1
        call.asked_s = now_s
        pause_s = self._timeouts.resend_s * 2 ** min(call.asks - 1, 16)
        call.next_ask_s = now_s + min(pause_s, self._timeouts.resend_max_s)

    def _forget(self, call: Call) -> None:
        if self.calls.get(call.id) is call:
            del self.calls[call.id]

    def _answered(self, call: Call, now_s: float) -> None:
        call.asks = 0
        call.next_ask_s = now_s + self._timeouts.silence_s

    def _accepted(self, body: Accepted, now_s: float) -> None:
        call = self.calls.get(body.id)
        if call is None:
            self._to_cancel[body.id] = None
            return
        if body.peer_timeout_ms:
            self._ping_s = min(self._timeouts.ping_s, body.peer_timeout_ms / 1000 / _PINGS_PER_TIMEOUT)
        call.accept(body)
        if call.phase is CallStatus.OPEN and not call.cancelling:
            self._answered(call, now_s)

    def _rejected(self, body: Rejected, now_s: float) -> None:
        call = self.calls.get(body.id)
        if call is None:
            return
        if call.phase is CallStatus.ABANDONED or (body.code is Code.NOT_FOUND and call.cancelling):
            self._forget(call)
            call.cancelled(over=True)
        elif body.code is Code.NOT_FOUND and call.phase is CallStatus.OPENING and call.accepted is not None:
            pass  # the answer to an earlier question of ours: the request is being made again already
        elif body.code is Code.NOT_FOUND and call.phase is CallStatus.OPEN and call.empty and not call.joined:
            call.phase = CallStatus.OPENING
            call.begun_s = now_s
            self._ask(call, now_s)
        elif body.code is Code.NOT_FOUND and call.phase is CallStatus.OPEN and not call.empty:
            self._forget(call)
            call.fail(Interrupted("the server was restarted in the middle of the answer and does not know it any more"))
        elif call.accepted is not None and body.code in (Code.NOT_READY, Code.OVERLOADED):
            # It was accepted once, so it waits for the server to come back rather than fail.
            call.next_ask_s = now_s + max(self._timeouts.resend_s, (body.retry_after_ms or 0) / 1000)
        elif body.code is Code.NOT_READY and self._timeouts.ready_soon_enough(call, body, now_s):
            call.next_ask_s = now_s + (body.retry_after_ms or 0) / 1000
        else:
            self._forget(call)
            call.fail(Refused(body.code, body.reason, body.parameter, body.retry_after_ms))

    def _delta(self, delta: frontdoor.Delta, now_s: float) -> None:
        call = self.calls.get(delta.id)
        if call is None:
            self._to_cancel[delta.id] = None
        elif call.contradicts(delta):
            # Only after everything died at once while the server's disk was full: what it computes again may differ.
            self._send(_cancel(call), "")
            self._forget(call)
            call.fail(Interrupted("the server lost a part of the answer and continues it otherwise than it began"))
        elif call.add_delta(delta):
            if not call.cancelling:
                self._answered(call, now_s)
        else:
            self._ask_for_gap(call, now_s)

    def _finished(self, finished: frontdoor.Finished, now_s: float) -> None:
        call = self.calls.get(finished.id)
        if call is None:
            self._to_acknowledge[finished.id] = None
            self._to_cancel.pop(finished.id, None)
            return
        if not call.add_finished(finished):
            self._ask_for_gap(call, now_s)
        elif call.phase is CallStatus.OVER:
            self._forget(call)
            self._to_acknowledge[call.id] = None

    def _ask_for_gap(self, call: Call, now_s: float) -> None:
        # What is on the way shows the same gap again and again: one question per pause is enough.
        if call.phase is not CallStatus.OPEN:
            return
        if now_s - call.asked_s >= self._timeouts.resend_s:
            self._ask(call, now_s)
        else:
            call.next_ask_s = min(call.next_ask_s, call.asked_s + self._timeouts.resend_s)

    def _malformed(self, body: frontdoor.Malformed) -> None:
        opening: Sequence[Call] = [call for call in self.calls.values() if call.phase is CallStatus.OPENING]
        if body.kind == Generate.__name__ and opening:
            self._forget(opening[0])
            opening[0].fail(Malformed(body.reason))


def _cancel(call: Call, *, left: bool = False) -> Cancel:
    return Cancel(call.id, credential=call.generate.credential, left=left)
