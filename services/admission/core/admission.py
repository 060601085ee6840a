"""The core of admission: accepts or refuses requests, keeps their output, sends it to clients, and ends requests.

Events go in by `apply`. Once per turn, messages to peers come out by `take` and messages to clients by `delivery`.
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
    """Admission without sockets, clocks or disks. first_number: above every request number that the journal has ever used."""

    def __init__(self, limits: AdmissionLimits, first_number: int, policy: TenantPolicy | None = None) -> None:
        self.state = AdmissionState.open(limits, first_number, policy or TenantPolicy())
        self._timeouts = RequestTimeouts(self.state)
        self._client_handler = ClientHandler(self.state, self._timeouts)
        self._peer_handler = PeerHandler(self.state)

    @property
    def delivery(self) -> ClientDelivery:
        """The messages that clients have not been sent yet."""
        return self.state.delivery

    @property
    def stuck(self) -> bool:
        """Whether writing the last journal page failed."""
        return self.state.unsaved.stuck

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self.state.ledger.live or self.state.ledger.tokenizing)

    @property
    def drained(self) -> bool:
        """Whether a drain was requested, every request has ended, and every reader has been sent the end."""
        return self.state.drain_ns is not None and not self.busy and not self.delivery.attachments

    def apply(self, event: AdmissionEvent) -> bool:
        """Apply one event. Returns False for a message of a new client if there are already `clients_max`."""
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
        """Messages to peers, tokenizer jobs and log entries that the events since the last call have caused."""
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
        """Usage since the last call, by tenant and class, and how many of the scheduler's costs are counted up to now."""
        return self.state.usage_counters.take(), self.state.usage_counters.costs

    def resume_costs(self, costs: CountedCosts) -> None:
        """Continue after the costs that earlier processes have written. To be called before anything else."""
        self.state.usage_counters.costs = costs

    def confirm_costs(self, costs: CountedCosts) -> None:
        """Confirm to the scheduler that its costs are written."""
        journaling.confirm_costs(self.state, costs)

    def restore(self, scheduler: list[ToScheduler], detokenizer: list[ToDetokenizer]) -> None:
        """Put back messages of the last `take` that a full socket did not accept, in their order; the next `take` returns them."""
        pairs = {choice.stream: (request, choice) for request, choice in self.state.unfinished()}
        for to_scheduler in reversed(scheduler):
            self.state.scheduler.restore(to_scheduler, pairs)
        for to_detokenizer in reversed(detokenizer):
            self.state.detokenizer.restore(to_detokenizer, pairs)

    def recover(self, recovered: JournalContents, now_ns: int) -> None:
        """Take over the requests and counters of a journal, and write a journal from now on.

        To be called before anything else. Unfinished requests go on; their clients have their grace time to attach again.
        """
        for request in journaling.recover(self.state, recovered, now_ns):
            self._timeouts.watch(request)

    def next_page(self, now_ns: int) -> JournalPage | None:
        """The page to write before any message of this turn is sent; None if nothing has to be written.

        `page_written` or `page_failed` must be called before the next event.
        """
        return journaling.next_page(self.state, now_ns)

    def page_written(self, page: JournalPage) -> None:
        """Note that a page is in the journal."""
        journaling.page_written(self.state, page)

    def page_failed(self, now_ns: int) -> None:
        """Note that a page could not be written, and end the requests that were accepted in it.

        No request is accepted until a page is written. Older requests go on; their output is sent, and written once that is possible.
        """
        for request in self.state.unsaved.page_failed(now_ns):
            self.state.end_all(request, End.SHED, now_ns, _UNRECORDED)

    def stop_journaling(self) -> None:
        """Write no more pages: what happens from here on is sent to clients, and a new process starts from the journal as it is."""
        self.state.unsaved.on = False

    def next_wakeup_ns(self) -> int | None:
        """Monotonic nanoseconds at which the next timeout or journal page is due; None if there is none."""
        recording_ns = self.state.unsaved.next_wakeup_ns(live=bool(self.state.ledger.live))
        wanted = (self._timeouts.next_wakeup_ns(), recording_ns)
        return min((each for each in wanted if each is not None), default=None)

    def snapshot(self) -> dict[str, object]:
        """Counts as `/debug/state` shows them; the first four are zero when no request is unfinished."""
        return snapshot.snapshot(self.state, self._timeouts)

    def check(self) -> None:
        """Assert every invariant."""
        invariants.check(self.state)
        self._timeouts.check()
