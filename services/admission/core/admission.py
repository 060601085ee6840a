"""Admission: takes requests in, keeps what they emit, tells clients and peers, and ends what must end.

Events go in by `apply`; what others must do comes out once per turn by `take`, what clients are owed by `delivery`.
The first terminal entry of a stream wins, wherever it comes from. Knows nothing of blocks, batches, sockets or clocks.
"""

from typing import assert_never

from noria.proto.base import End
from noria.services.admission.core import invariants, journaling, snapshot
from noria.services.admission.core.client_handler import ClientHandler
from noria.services.admission.core.clients.client_delivery import ClientDelivery
from noria.services.admission.core.intake import intake
from noria.services.admission.core.journaling import JournalContents
from noria.services.admission.core.ledger.unsaved_changes import JournalPage
from noria.services.admission.core.ledger.usage_counters import CountedCosts
from noria.services.admission.core.peer_handler import PeerHandler
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.state.events import (
    AdmissionEvent,
    AdmissionOutput,
    ClientMessage,
    ClockTick,
    DrainRequested,
    PeerJoined,
    PeerLost,
    PeerMessage,
    PromptTokenized,
    TenancyChanged,
)
from noria.services.admission.core.state.outbox import ToDetokenizer, ToScheduler
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.class_totals import TokenUsage, UsageKey
from noria.services.admission.core.tenants.tenant_policy import TenantPolicy
from noria.services.admission.core.timeouts import RequestTimeouts

_UNRECORDED = "what is accepted could not be written down, perhaps because the disk is full; try again"


class Admission:
    """The pure core. `first_number` must be above every request number used before in the life of a journal."""

    def __init__(self, limits: AdmissionLimits, first_number: int, policy: TenantPolicy | None = None) -> None:
        self.state = AdmissionState.open(limits, first_number, policy or TenantPolicy())
        self._timeouts = RequestTimeouts(self.state)
        self._client_handler = ClientHandler(self.state, self._timeouts)
        self._peer_handler = PeerHandler(self.state)

    @property
    def delivery(self) -> ClientDelivery:
        """What clients are owed."""
        return self.state.delivery

    @property
    def stuck(self) -> bool:
        """Whether the last page could not be written."""
        return self.state.unsaved.stuck

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self.state.ledger.live or self.state.ledger.tokenizing)

    @property
    def drained(self) -> bool:
        """Whether it was told to take nothing more, everything has ended, and every reader has its end."""
        return self.state.drain_ns is not None and not self.busy and not self.delivery.attachments

    def apply(self, event: AdmissionEvent) -> bool:
        """Take one event; False when there are too many clients to take a message from another one."""
        match event:
            case ClientMessage():
                return self._client_handler.handle(event)
            case PromptTokenized():
                intake.tokenized(self.state, event)
            case PeerMessage():
                self._peer_handler.handle(event)
            case PeerJoined():
                self._peer_handler.joined(event.peer)
            case PeerLost():
                self._peer_handler.lost(event.peer)
            case TenancyChanged():
                self.state.policy = event.policy
                self.state.tenants.apply_policy(event.policy, event.now_ns)
            case DrainRequested():
                self.state.drain_ns = event.until_ns
            case ClockTick():
                self._timeouts.tick(event.now_ns)
            case _:
                assert_never(event)
        return True

    def take(self, now_ns: int) -> AdmissionOutput:
        """Everything the events since the last call have others do."""
        state = self.state
        jobs, abandoned = state.tokenizer.take()
        turn = AdmissionOutput(
            state.scheduler.take(now_ns), state.detokenizer.take(), jobs, abandoned, state.log_entries[:]
        )
        state.log_entries.clear()
        if not state.unsaved.on:
            state.usage_counters.unrecorded.clear()
        return turn

    def take_usage(self) -> tuple[dict[UsageKey, TokenUsage], CountedCosts]:
        """What was used since the last call, to be written down, and which of the scheduler's costs are in it and before."""
        return self.state.usage_counters.take(), self.state.usage_counters.costs

    def resume_costs(self, costs: CountedCosts) -> None:
        """Earlier lives have written costs down up to there. To be called before anything else."""
        self.state.usage_counters.costs = costs

    def confirm_costs(self, costs: CountedCosts) -> None:
        """Costs are written down up to there."""
        journaling.confirm_costs(self.state, costs)

    def restore(self, scheduler: list[ToScheduler], detokenizer: list[ToDetokenizer]) -> None:
        """Messages of the turn just taken that a full socket did not accept, in their order; they are given again."""
        pairs = {choice.stream: (request, choice) for request, choice in self.state.unfinished()}
        for to_scheduler in reversed(scheduler):
            self.state.scheduler.restore(to_scheduler, pairs)
        for to_detokenizer in reversed(detokenizer):
            self.state.detokenizer.restore(to_detokenizer, pairs)

    def recover(self, recovered: JournalContents, now_ns: int) -> None:
        """Begin with what an earlier life had on record, and put everything on record from now on.

        To be called before anything else. Whoever is not finished goes on; its client has a while to come for it.
        """
        for request in journaling.recover(self.state, recovered, now_ns):
            self._timeouts.watch(request)

    def next_page(self, now_ns: int) -> JournalPage | None:
        """What has to be on record before anything leaves that this turn has decided; None when nothing has.

        Then `written` or `unwritten` must be called with it, before any other event.
        """
        return journaling.next_page(self.state, now_ns)

    def page_written(self, page: JournalPage) -> None:
        """The page is on record."""
        journaling.page_written(self.state, page)

    def page_failed(self, now_ns: int) -> None:
        """The page was not taken: nobody is accepted until it is, and who was accepted in it is turned away.

        What was accepted before goes on; what it emits is told, and put on record as soon as that can be.
        """
        for request in self.state.unsaved.page_failed(now_ns):
            self.state.end_all(request, End.SHED, now_ns, _UNRECORDED)

    def stop_journaling(self) -> None:
        """What happens from here on is told and not put on record: a next life begins with what is there now."""
        self.state.unsaved.on = False

    def next_wakeup_ns(self) -> int | None:
        """When time alone will change something."""
        recording_ns = self.state.unsaved.next_wakeup_ns(live=bool(self.state.ledger.live))
        wanted = (self._timeouts.next_wakeup_ns(), recording_ns)
        return min((each for each in wanted if each is not None), default=None)

    def snapshot(self) -> dict[str, object]:
        """Counts for people and tests; the first four are zero when nothing is under way."""
        return snapshot.snapshot(self.state, self._timeouts)

    def check(self) -> None:
        """Assert every invariant."""
        invariants.check(self.state)
        self._timeouts.check()
