"""Ends what takes too long: deadlines of requests, silent clients, the drain, and the retention of ended requests."""

import heapq
from typing import Final

from noria.proto.base import End
from noria.proto.frontdoor import Code
from noria.services.admission.core.ledger.request import Request, RequestStage
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.tenants.refusal import Refusal

_TIMERS_KEPT: Final = 1024


class RequestTimeouts:
    """Ends and forgets what is overdue. Timers are (deadline, request number), never more than a few per request."""

    def __init__(self, state: AdmissionState) -> None:
        self._state = state
        self._limits = state.limits
        self._timers: list[tuple[int, int]] = []

    @property
    def timers(self) -> int:
        """How many deadlines are kept, including those of requests that ended before."""
        return len(self._timers)

    def next_wakeup_ns(self) -> int | None:
        """Monotonic nanoseconds at which the next timeout is due; None if there is none."""
        state = self._state
        heard_ns = state.delivery.oldest_heard_ns()
        wanted = (
            state.drain_ns if state.ledger.live and not state.unsaved.on else None,
            self._timers[0][0] if self._timers else None,
            state.ledger.retained[0][0] if state.ledger.retained else None,
            min(state.orphans.values(), default=None),
            None if heard_ns is None else heard_ns + self._limits.client_timeout_ns,
            state.delivery.retry_ns(),
        )
        return min((each for each in wanted if each is not None), default=None)

    def tick(self, now_ns: int) -> None:
        """End and forget every request whose time is over at `now_ns`."""
        self._expire(now_ns)
        for client in self._state.delivery.silent_clients(now_ns):
            for request in self._state.delivery.remove(client):
                waits = request.keep or client.heard_ns + request.grace_ns > now_ns
                if request.stage is not RequestStage.ENDED and waits:
                    self._state.client_gone(request, client.heard_ns)
                else:
                    self._abandon(request, now_ns, "the client fell silent")
        overdue = [number for number, until_ns in self._state.orphans.items() if until_ns <= now_ns]
        for number in overdue:
            self._abandon(self._state.ledger.requests[number], now_ns, "the client did not come back")
        if self._state.drain_ns is not None and now_ns >= self._state.drain_ns and not self._state.unsaved.on:
            for request in list(self._state.ledger.live.values()):
                self._state.end_all(request, End.SHED, now_ns, "the server is shutting down; try again")
        self._forget_retained(now_ns)

    def _abandon(self, request: Request, now_ns: int, detail: str) -> None:
        """Cancel a request that has lost its reader for good; one in the background goes on without a reader."""
        if request.background and request.stage is not RequestStage.ENDED:
            self._state.reader_left(request, now_ns)
        elif request.stage is RequestStage.TOKENIZING:
            self._state.refuse_reserved(request, Refusal(Code.NOT_FOUND, detail))
        else:
            self._state.cancel(request, now_ns, detail)

    def watch(self, request: Request) -> None:
        """Add timers for the deadlines of a request."""
        for deadline_ns in (request.deadline_first_ns, request.deadline_ns):
            if deadline_ns is not None:
                heapq.heappush(self._timers, (deadline_ns, request.number))
        ledger = self._state.ledger
        if len(self._timers) > 4 * (len(ledger.live) + len(ledger.tokenizing)) + _TIMERS_KEPT:
            # Timers of finished requests would otherwise stay until they are due, for days if a client says so.
            self._timers = [each for each in self._timers if each[1] in ledger.live or each[1] in ledger.tokenizing]
            heapq.heapify(self._timers)

    def _expire(self, now_ns: int) -> None:
        ledger = self._state.ledger
        while self._timers and self._timers[0][0] <= now_ns:
            _, number = heapq.heappop(self._timers)
            if number in ledger.tokenizing:
                reason = "the time to live was over before the prompt was tokenized; try again with more"
                self._state.refuse_reserved(ledger.requests[number], Refusal(Code.DEADLINE, reason))
            elif number in ledger.live:
                self._expire_live(ledger.live[number], now_ns)

    def _expire_live(self, request: Request, now_ns: int) -> None:
        whole = request.deadline_ns is not None and request.deadline_ns <= now_ns
        first = request.deadline_first_ns is not None and request.deadline_first_ns <= now_ns
        for choice in request.choices:
            if choice.end is not None:
                continue
            if whole:
                self._state.end(request, choice, End.DEADLINE, now_ns, detail="not finished within ttl_ms")
            elif first and choice.first_token_ns is None:
                self._state.end(request, choice, End.DEADLINE, now_ns, detail="no token within ttl_first_ms")

    def _forget_retained(self, now_ns: int) -> None:
        ledger, retained = self._state.ledger, self._state.ledger.retained
        for _ in range(len(retained)):
            if retained[0][0] > now_ns and len(retained) <= 2 * self._limits.requests_max:
                return
            _, number = retained.popleft()
            request = ledger.requests.get(number)
            if request is None:
                continue
            if number in self._state.delivery.attachments:
                # A slow reader is still owed the rest; it counts among `requests_max` until it has it or is gone.
                retained.append((now_ns + self._limits.retention_ns, number))
            else:
                self._state.forget(request)

    def check(self) -> None:
        """Assert that every deadline is watched."""
        due = {number for _, number in self._timers}
        for number in (*self._state.ledger.live, *self._state.ledger.tokenizing):
            request = self._state.ledger.requests[number]
            assert request.deadline_ns is None or number in due
