"""Handles the messages of the scheduler and the detokenizer: tokens, ends, capacity, costs, and their restarts.

A message with tokens names the position of the first one: known tokens are dropped, and after a gap they are requested again.
"""

from typing import assert_never

from noria.proto.base import End, Service, Stream
from noria.proto.output import TextRun, Texts, Unknown
from noria.proto.scheduling import Capacity, Expenses, Reclaims, Spent, Suspected
from noria.proto.token_runs import RunFit, RunStatus, StreamPosition
from noria.services.admission.core.ledger.request import ChoiceRecord, Request
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.state.events import PeerMessage


class PeerHandler:
    """Applies the messages of the scheduler and the detokenizer to the state."""

    def __init__(self, state: AdmissionState) -> None:
        self._state = state

    def handle(self, message: PeerMessage) -> None:
        """Apply one message."""
        match message.body:
            case Capacity() as capacity:
                self._state.credit.update(capacity)
            case Reclaims() as reclaims:
                self._state.reclaims.add(reclaims)
                for entry in reclaims.entries:
                    self._state.usage_counters.record_reclaim(entry)
            case Expenses() as expenses:
                for spent in self._state.usage_counters.uncounted_costs(message.life, expenses):
                    self._spent(spent, message.now_ns)
            case Suspected() as suspected:
                self._state.suspected({each.stream: each.doubt for each in suspected.entries})
            case Texts() as texts:
                for run in texts.runs:
                    self._text(run, message.now_ns)
            case Unknown() as unknown:
                for stream in unknown.streams:
                    self._unknown(stream)
            case _:
                assert_never(message.body)

    def joined(self, peer: Service) -> None:
        """Queue every unfinished stream for a peer that has restarted or reconnected."""
        if peer is Service.SCHEDULER:
            self._state.usage_counters.forget_awaited()
            self._state.scheduler.join(self._state.unfinished())
        elif peer is Service.DETOKENIZER:
            self._state.detokenizer.join(self._state.unfinished())

    def lost(self, peer: Service) -> None:
        """Drop everything queued for a peer that has died; nothing is queued for it until it joins again."""
        if peer is Service.SCHEDULER:
            self._state.scheduler.leave()
        elif peer is Service.DETOKENIZER:
            self._state.detokenizer.leave()

    def _spent(self, spent: Spent, now_ns: int) -> None:
        request = self._state.ledger.requests.get(spent.stream.request)
        tenant, owed = self._state.usage_counters.record_cost(spent, request)
        self._state.tenants.charge_unreserved(tenant, owed, now_ns)

    def _text(self, run: TextRun, now_ns: int) -> None:
        found = self._state.ledger.choice(run.stream)
        if found is None:
            return
        request, choice = found
        position = StreamPosition(choice.attempt, len(choice.ids), choice.text.length)
        fit = position.fit(run.attempt, run.start, run.characters)
        match fit.status:
            case RunStatus.OUTDATED:
                return
            case RunStatus.MISSING_IDS:
                self._state.detokenizer.resend(choice)
                return
            case RunStatus.MISSING_TEXT:
                # Only opening the stream again says how much text is here.
                self._state.detokenizer.open(request, choice)
                return
            case RunStatus.RESTARTS:
                self._state.ledger.truncate(choice, run.attempt, run.start, run.characters)
                self._state.unsaved.truncated(choice)
                self._state.delivery.truncate(request, choice)
            case RunStatus.CONTINUES:
                pass
            case _:
                assert_never(fit.status)
        self._emit(request, choice, run, fit, now_ns)

    def _emit(self, request: Request, choice: ChoiceRecord, run: TextRun, fit: RunFit, now_ns: int) -> None:
        ids = run.ids[fit.known_ids :]
        text = run.text[fit.known_characters :]
        first = choice.first_token_ns is None
        self._state.ledger.emit(choice, ids, text, now_ns, run.logprobs[fit.known_ids :])
        choice.cached_tokens = max(choice.cached_tokens, run.cached_tokens)
        choice.queue_us = max(choice.queue_us, run.queue_us)
        if choice.first_token_ns is not None:
            self._state.waiting.remove(request)
        if ids:
            self._state.usage_counters.record_tokens(request, choice, len(ids), now_ns, first=first)
        if ids or text:
            self._state.unsaved.stream_changed(choice)
        if run.end:
            end = End(run.end)
            self._state.end(request, choice, end, now_ns, proposed=True, matched=run.matched, detail=run.detail)
        else:
            self._state.delivery.stream_changed(request, choice)

    def _unknown(self, stream: Stream) -> None:
        found = self._state.ledger.choice(stream)
        if found is not None:
            self._state.detokenizer.open(*found)
        elif self._state.scheduler.joined and self._state.ledger.over(stream):
            # The scheduler runs what nobody wants: it missed the end.
            self._state.scheduler.ended[stream] = None
