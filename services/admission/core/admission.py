"""Admission: takes requests in, keeps what they emit, tells clients and peers, and ends what must end.

Events go in by `apply`; what others must do comes out once per turn by `take`, what clients are owed by `delivery`.
The first terminal entry of a stream wins, wherever it comes from. Knows nothing of blocks, batches, sockets or clocks.
"""

from typing import assert_never

from noria.proto.base import End
from noria.services.admission.core import invariants, journaling, snapshot
from noria.services.admission.core.client_handler import ClientHandler
from noria.services.admission.core.clients.delivery import ClientDelivery
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

    def __init__(self, rules: AdmissionLimits, first_number: int, policy: TenantPolicy | None = None) -> None:
        self.books = AdmissionState.open(rules, first_number, policy or TenantPolicy())
        self._patience = RequestTimeouts(self.books)
        self._desk = ClientHandler(self.books, self._patience)
        self._peers = PeerHandler(self.books)

    @property
    def delivery(self) -> ClientDelivery:
        """What clients are owed."""
        return self.books.delivery

    @property
    def stuck(self) -> bool:
        """Whether the last page could not be written."""
        return self.books.record.stuck

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self.books.ledger.live or self.books.ledger.tokenizing)

    @property
    def drained(self) -> bool:
        """Whether it was told to take nothing more, everything has ended, and every reader has its end."""
        return self.books.drain_ns is not None and not self.busy and not self.delivery.attachments

    def apply(self, event: AdmissionEvent) -> bool:
        """Take one event; False when there are too many clients to take a message from another one."""
        match event:
            case ClientMessage():
                return self._desk.arrival(event)
            case PromptTokenized():
                intake.tokenized(self.books, event)
            case PeerMessage():
                self._peers.told(event)
            case PeerJoined():
                self._peers.joined(event.peer)
            case PeerLost():
                self._peers.lost(event.peer)
            case TenancyChanged():
                self.books.policy = event.policy
                self.books.tenants.adopt(event.policy, event.now_ns)
            case DrainRequested():
                self.books.drain_ns = event.until_ns
            case ClockTick():
                self._patience.tick(event.now_ns)
            case _:
                assert_never(event)
        return True

    def take(self, now_ns: int) -> AdmissionOutput:
        """Everything the events since the last call have others do."""
        books = self.books
        jobs, abandoned = books.tokenizer.take()
        turn = AdmissionOutput(books.scheduler.take(now_ns), books.detokenizer.take(), jobs, abandoned, books.notes[:])
        books.notes.clear()
        if not books.record.on:
            books.accounts.unrecorded.clear()
        return turn

    def used(self) -> tuple[dict[UsageKey, TokenUsage], CountedCosts]:
        """What was used since the last call, to be written down, and which of the scheduler's costs are in it and before."""
        return self.books.accounts.take(), self.books.accounts.told

    def resume_costs(self, told: CountedCosts) -> None:
        """Earlier lives have written costs down up to there. To be called before anything else."""
        self.books.accounts.told = told

    def accounted(self, told: CountedCosts) -> None:
        """Costs are written down up to there."""
        journaling.accounted(self.books, told)

    def restore(self, scheduler: list[ToScheduler], detokenizer: list[ToDetokenizer]) -> None:
        """Messages of the turn just taken that a full socket did not accept, in their order; they are given again."""
        pairs = {choice.stream: (request, choice) for request, choice in self.books.unfinished()}
        for to_scheduler in reversed(scheduler):
            self.books.scheduler.restore(to_scheduler, pairs)
        for to_detokenizer in reversed(detokenizer):
            self.books.detokenizer.restore(to_detokenizer, pairs)

    def recover(self, recovered: JournalContents, now_ns: int) -> None:
        """Begin with what an earlier life had on record, and put everything on record from now on.

        To be called before anything else. Whoever is not finished goes on; its client has a while to come for it.
        """
        for request in journaling.recover(self.books, recovered, now_ns):
            self._patience.watch(request)

    def page(self, now_ns: int) -> JournalPage | None:
        """What has to be on record before anything leaves that this turn has decided; None when nothing has.

        Then `written` or `unwritten` must be called with it, before any other event.
        """
        return journaling.page(self.books, now_ns)

    def written(self, page: JournalPage) -> None:
        """The page is on record."""
        journaling.written(self.books, page)

    def unwritten(self, now_ns: int) -> None:
        """The page was not taken: nobody is accepted until it is, and who was accepted in it is turned away.

        What was accepted before goes on; what it emits is told, and put on record as soon as that can be.
        """
        for request in self.books.record.unwritten(now_ns):
            self.books.end_all(request, End.SHED, now_ns, _UNRECORDED)

    def hand_over(self) -> None:
        """What happens from here on is told and not put on record: a next life begins with what is there now."""
        self.books.record.on = False

    def wanted_ns(self) -> int | None:
        """When time alone will change something."""
        recording_ns = self.books.record.wanted_ns(live=bool(self.books.ledger.live))
        wanted = (self._patience.wanted_ns(), recording_ns)
        return min((each for each in wanted if each is not None), default=None)

    def snapshot(self) -> dict[str, object]:
        """Counts for people and tests; the first four are zero when nothing is under way."""
        return snapshot.snapshot(self.books, self._patience)

    def check(self) -> None:
        """Assert every invariant."""
        invariants.check(self.books)
        self._patience.check()
