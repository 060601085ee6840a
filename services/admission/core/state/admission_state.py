"""The whole state of admission, and the operations on several parts of it at once: accept, refuse, end, forget.

An end is entered in the ledger first; the scheduler, the detokenizer and the client are sent it in the same turn.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from noria.proto.base import End, Service, Stream
from noria.proto.frontdoor import Code, Forecast
from noria.proto.scheduling import Doubt
from noria.services.admission.core.clients.client_delivery import ClientDelivery
from noria.services.admission.core.clients.client_session import ClientSession
from noria.services.admission.core.forecast.scheduler_credit import SchedulerCredit
from noria.services.admission.core.forecast.waiting_by_class import WaitingByClass
from noria.services.admission.core.ledger.ledger import Ledger
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestStage
from noria.services.admission.core.ledger.statistics import AdmissionTotals, ReclaimStatistics
from noria.services.admission.core.ledger.unsaved_changes import UnsavedChanges
from noria.services.admission.core.ledger.usage_counters import UsageCounters
from noria.services.admission.core.state.events import EndedLogEntry, RefusedLogEntry, RequestLogEntry
from noria.services.admission.core.state.outbox import DetokenizerOutbox, RequestChoice, SchedulerOutbox
from noria.services.admission.core.state.tokenizer_outbox import TokenizerOutbox
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.class_totals import UsageKey
from noria.services.admission.core.tenants.refusal import Refusal
from noria.services.admission.core.tenants.tenant_policy import ClassRule, TenantPolicy
from noria.services.admission.core.tenants.tenant_state import TenantStates

NOBODY = UsageKey("", "")
_COMPLETE = (End.STOP, End.LENGTH)
PREVIEW = "\0"  # begins the ids under which previews are kept, which no request may have
_SHED = "dropped to make room for requests of a higher class; try again"


@dataclass(slots=True, eq=False)
class AdmissionState:
    """All state of admission.

    usage_counters: what has happened, by tenant and class. policy: classes and tenants as last read. tenants: what each has
    under way.
    waiting: requests without a token yet. unsaved: changes that the journal does not have yet.
    orphans: unfinished requests whose client is gone, and until when it may come back for them. unread: those that
    need no reader and have none just now: in the background, or to be asked for again after their client died.
    drain_ns: until when a draining process finishes.
    """

    limits: AdmissionLimits
    ledger: Ledger
    delivery: ClientDelivery
    credit: SchedulerCredit
    scheduler: SchedulerOutbox
    detokenizer: DetokenizerOutbox
    usage_counters: UsageCounters
    policy: TenantPolicy = field(default_factory=TenantPolicy)
    tenants: TenantStates = field(default_factory=TenantStates)
    tokenizer: TokenizerOutbox = field(default_factory=TokenizerOutbox)
    waiting: WaitingByClass = field(default_factory=WaitingByClass)
    unsaved: UnsavedChanges = field(default_factory=UnsavedChanges)
    reclaims: ReclaimStatistics = field(default_factory=ReclaimStatistics)
    orphans: dict[int, int] = field(default_factory=dict)
    unread: dict[int, None] = field(default_factory=dict)
    log_entries: list[RequestLogEntry] = field(default_factory=list)
    drain_ns: int | None = None

    @classmethod
    def open(cls, limits: AdmissionLimits, first_number: int, policy: TenantPolicy) -> "AdmissionState":
        """An empty state; requests are numbered from `first_number`."""
        credit = SchedulerCredit()
        return cls(
            limits,
            Ledger(first_number),
            ClientDelivery(limits),
            credit,
            SchedulerOutbox(limits, credit),
            DetokenizerOutbox(limits),
            UsageCounters(limits.bounds),
            policy,
        )

    @property
    def totals(self) -> AdmissionTotals:
        """The terms of the conservation law."""
        return AdmissionTotals.of(self.usage_counters.class_totals.values())

    def waiting_for(self) -> tuple[str, ...]:
        """The services without which nothing can be accepted."""
        waiting = []
        if not self.scheduler.joined:
            waiting.append(Service.SCHEDULER.value)
        elif not self.credit.ready:
            waiting.append(Service.EXECUTOR.value)
        if not self.detokenizer.joined:
            waiting.append(Service.DETOKENIZER.value)
        return tuple(waiting)

    def held(self) -> int:
        """The number of requests with a reader, waiting for one to come back, or running in the background."""
        return len(self.delivery.attachments) + len(self.orphans) + len(self.unread)

    def reader_left(self, request: Request, now_ns: int) -> None:
        """Note that an unfinished request lost its reader at `now_ns`; it is cancelled after its grace time without one."""
        self.delivery.detach(request)
        if request.background or request.number in self.unread:
            self.unread[request.number] = None
        else:
            self.orphans.setdefault(request.number, now_ns + request.grace_ns)

    def client_gone(self, request: Request, now_ns: int) -> None:
        """The client of a request that has not ended is gone, last heard at `now_ns`, and could not say what its reader wants.

        One that may be asked for again goes on to its end: its reader may be on the way to another gateway.
        """
        if request.keep:
            self.delivery.detach(request)
            self.orphans.pop(request.number, None)
            self.unread[request.number] = None
        else:
            self.reader_left(request, now_ns)

    def stop_waiting_for_reader(self, request: Request) -> None:
        """Stop the grace time of a request, because it has a reader again or has ended."""
        self.orphans.pop(request.number, None)
        self.unread.pop(request.number, None)

    def class_rule(self, name: str) -> ClassRule:
        """A class as configured; one that is gone meanwhile has no limits."""
        return self.policy.classes.get(name) or ClassRule(name)

    def refuse(
        self, client: ClientSession | None, origin: str, request_id: str, refusal: Refusal, usage_key: UsageKey = NOBODY
    ) -> None:
        """Answer that a request is not accepted; `origin` is who sent it first."""
        self.usage_counters.refuse(usage_key, refusal.code)
        self.log_entries.append(RefusedLogEntry(origin, request_id, refusal.code, refusal.parameter, *usage_key))
        if client is not None:
            self.delivery.answer(client, refusal.rejected(request_id))

    def leave_tokenizing(self, request: Request) -> None:
        """Release the credit and tokenizer space of a request that leaves the stage TOKENIZING."""
        assert request.stage is RequestStage.TOKENIZING
        self.credit.reserve(-request.reserved_streams, request.traffic_class)
        self.tokenizer.release(request)

    def refuse_reserved(self, request: Request, refusal: Refusal) -> None:
        """Refuse a request whose key was taken, and give the key back; a preview is answered that it would be refused."""
        attachment = self.delivery.attachments.get(request.number)
        client = attachment.client if attachment is not None else None
        self.leave_tokenizing(request)
        self.forget(request)
        if request.preview:
            self.answer_preview(client, refusal.forecast(request.key.id.removeprefix(PREVIEW), request.traffic_class))
            return
        self.tenants.named(request.key.tenant).streams -= request.n
        self.refuse(client, request.client, request.key.id, refusal, self.usage_counters.of(request))

    def answer_preview(self, client: ClientSession | None, forecast: Forecast) -> None:
        """Answer a preview, if somebody still waits for it."""
        if client is not None:
            self.delivery.answer(client, forecast)

    def shed(self, requests: list[Request], now_ns: int) -> None:
        """Drop accepted requests that have no token yet, and count their credit as free."""
        for request in requests:
            for choice in request.choices:
                # What has not been sent yet gives its credit back by itself.
                if choice.end is None and choice.stream not in self.scheduler.submissions:
                    self.credit.count_shed(request.prompt_tokens)
            self.end_all(request, End.SHED, now_ns, _SHED)

    def accept(self, request: Request, prompt: tuple[int, ...], choices: list[ChoiceRecord], now_ns: int) -> None:
        """Enter a request in the ledger as accepted, and have its streams scheduled and opened."""
        self.leave_tokenizing(request)
        self.ledger.accept(request, prompt, choices, now_ns)
        self.unsaved.accepted(request)
        self.waiting.add(request)
        self.usage_counters.accept(request)
        self.delivery.accepted(request)
        for choice in choices:
            self.scheduler.submit(request, choice)
            self.detokenizer.open(request, choice)

    def end(
        self,
        request: Request,
        choice: ChoiceRecord,
        end: End,
        now_ns: int,
        *,
        proposed: bool = False,
        matched: str = "",
        detail: str = "",
    ) -> None:
        """Enter the end of a stream; proposed: the scheduler or detokenizer ended it, so nothing is withdrawn there."""
        self.ledger.end(request, choice, end, now_ns, matched=matched, detail=detail)
        self.unsaved.stream_changed(choice)
        submitted = self.scheduler.end(request, choice.stream, None if proposed else end)
        self.usage_counters.end(request, choice, end, now_ns, submitted=submitted)
        tenant = self.tenants.named(request.key.tenant)
        tenant.streams -= 1
        tenant.ended(len(choice.ids), (now_ns - request.accepted_ns) / 1e6, whole=end in _COMPLETE)
        self.detokenizer.end(choice.stream)
        self.delivery.stream_changed(request, choice)
        self.log_entries.append(
            EndedLogEntry(
                request.client,
                request.key.id,
                request.number,
                choice.stream.choice,
                end,
                request.prompt_tokens,
                len(choice.ids),
                now_ns - request.accepted_ns,
                detail,
                request.traceparent,
            )
        )
        if request.unfinished == 0:
            self.waiting.remove(request)
            tenant.reconcile(request.reserved_tokens, self.usage_counters.close(request), now_ns)
            self.stop_waiting_for_reader(request)
            self.ledger.retain(request, now_ns + self.limits.retention_ns)

    def end_all(self, request: Request, end: End, now_ns: int, detail: str) -> None:
        """End every unfinished stream of a live request, and withdraw them from the scheduler."""
        for choice in request.choices:
            if choice.end is None:
                self.end(request, choice, end, now_ns, detail=detail)

    def cancel(self, request: Request, now_ns: int, detail: str) -> None:
        """Cancel a request in any stage.

        One that is not accepted yet is entered as accepted and cancelled, so that its client hears of the same end.
        """
        match request.stage:
            case RequestStage.TOKENIZING if request.preview:
                self.refuse_reserved(request, Refusal(Code.NOT_FOUND, detail))
            case RequestStage.TOKENIZING:
                choices = [ChoiceRecord(Stream(request.number, index), request.sampling) for index in range(request.n)]
                self.accept(request, (), choices, now_ns)
                self.end_all(request, End.CANCELLED, now_ns, detail)
            case RequestStage.LIVE:
                self.end_all(request, End.CANCELLED, now_ns, detail)
            case RequestStage.ENDED:
                pass

    def forget(self, request: Request) -> None:
        """Remove a request that nobody can ask for any more from every part of the state."""
        self.delivery.detach(request)
        self.stop_waiting_for_reader(request)
        self.ledger.forget(request)
        self.unsaved.forgotten(request)

    def suspected(self, doubts: Mapping[Stream, Doubt]) -> None:
        """Keep which streams the scheduler suspects, for its successor; they replace all earlier ones."""
        doubts = {stream: doubt for stream, doubt in doubts.items() if self.ledger.choice(stream) is not None}
        if doubts != self.scheduler.doubts:
            self.scheduler.doubts = doubts
            self.unsaved.suspected(doubts)

    def unfinished(self) -> Iterator[RequestChoice]:
        """Every stream that has not ended, oldest first."""
        return self.ledger.unfinished()
