"""Timeouts of a client, and the rule by which a call is given up."""

import msgspec

from noria.client.call import Call, CallStatus
from noria.proto.frontdoor import Rejected


class ClientTimeouts(msgspec.Struct, frozen=True):
    """How long a client waits, in seconds.

    accept_s: for any sign of life before a request is given up as `Unreachable`. answer_s: for an answer to a
    request from a server that does show life. ready_s: for a server that is not ready to be so. ping_s: between signs of
    life of our own, more often where the server is less patient. silence_s: without news of an open call before it
    attaches again. reconnect_s: without any sign of life before open calls are given up. resend_s, resend_max_s: first
    and longest pause between repeated questions. leave_s: how long an abandoned call waits for its end to be confirmed.
    calls_max: calls at a time.
    """

    accept_s: float = 10.0
    answer_s: float = 60.0
    ready_s: float = 10.0
    ping_s: float = 5.0
    silence_s: float = 15.0
    reconnect_s: float = 60.0
    resend_s: float = 1.0
    resend_max_s: float = 8.0
    leave_s: float = 30.0
    calls_max: int = 8192

    def give_up_reason(self, call: Call, heard_s: float, now_s: float) -> str:
        """Why a call is out of time, as a sentence; "" while it is not. heard_s: when the last message of the server came."""
        silent_s = now_s - max(heard_s, call.begun_s)
        match call.phase:
            case CallStatus.OPENING:
                if silent_s >= self.accept_s:
                    return f"no answer for {silent_s:.0f} s; is `noria up` running in the same runtime folder?"
                if now_s - call.begun_s >= self.answer_s:
                    return f"the server is there but did not answer this request for {now_s - call.begun_s:.0f} s"
            case CallStatus.OPEN:
                if silent_s >= self.reconnect_s:
                    return f"the answer stopped coming and nothing was heard for {silent_s:.0f} s"
            case CallStatus.ABANDONED:
                if now_s - call.left_s >= self.leave_s:
                    return "its end was never confirmed"
            case CallStatus.OVER:
                pass
        return ""

    def ready_soon_enough(self, call: Call, body: Rejected, now_s: float) -> bool:
        """Whether a server that rejects a call as not ready expects to be ready within `ready_s` of its beginning."""
        if body.retry_after_ms is None:
            return False
        return now_s + body.retry_after_ms / 1000 - call.begun_s <= self.ready_s
