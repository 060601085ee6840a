"""Admission: takes requests in, keeps what they emit, tells clients and peers, and ends what must end.

Events go in by `apply`; what others must do comes out once per turn by `take`, what clients are owed by `delivery`.
The first terminal entry of a stream wins, wherever it comes from. Knows nothing of blocks, batches, sockets or clocks.
"""

from typing import assert_never

from noria.proto.base import End, Service, Stream
from noria.proto.frontdoor import (
    Acknowledge,
    Attach,
    Cancel,
    Describe,
    Description,
    Generate,
    Identified,
    Identify,
    Inquire,
    Ping,
    Pong,
    Preview,
    Rejected,
)
from noria.proto.output import TextRun, Texts, Unknown
from noria.proto.scheduling import Capacity, Expenses, Reclaims, Spent
from noria.services.admission.core import checks, composing, intake, recovery, showing
from noria.services.admission.core.accounts import Account, Usage
from noria.services.admission.core.books import Books
from noria.services.admission.core.clients import Client
from noria.services.admission.core.delivery import Delivery
from noria.services.admission.core.events import (
    Arrival,
    Draining,
    Event,
    Joined,
    Lost,
    News,
    PolicyChanged,
    Tick,
    Tokenized,
    Turn,
)
from noria.services.admission.core.ledger import Choice, Key, Request, Stage
from noria.services.admission.core.outgoing import ToDetokenizer, ToScheduler
from noria.services.admission.core.patience import Patience
from noria.services.admission.core.record import Page
from noria.services.admission.core.recovery import Recovered
from noria.services.admission.core.rules import Rules
from noria.services.admission.core.tenancy import Policy

_UNRECORDED = "what is accepted could not be written down, perhaps because the disk is full; try again"


class Admission:
    """The pure core. `first_number` must be above every request number used before in the life of a journal."""

    def __init__(self, rules: Rules, first_number: int, policy: Policy | None = None) -> None:
        self._rules = rules
        self.books = Books.open(rules, first_number, policy or Policy())
        self._patience = Patience(self.books)

    @property
    def delivery(self) -> Delivery:
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

    def apply(self, event: Event) -> bool:
        """Take one event; False when there are too many clients to take a message from another one."""
        match event:
            case Arrival():
                return self._arrival(event)
            case Tokenized():
                intake.tokenized(self.books, event)
            case News():
                self._news(event)
            case Joined():
                self._joined(event.peer)
            case Lost():
                self._lost(event.peer)
            case PolicyChanged():
                self.books.policy = event.policy
                self.books.tenants.adopt(event.policy, event.now_ns)
            case Draining():
                self.books.drain_ns = event.until_ns
            case Tick():
                self._patience.tick(event.now_ns)
            case _:
                assert_never(event)
        return True

    def take(self, now_ns: int) -> Turn:
        """Everything the events since the last call have others do."""
        books = self.books
        turn = Turn(
            books.scheduler.take(now_ns),
            books.detokenizer.take(),
            list(books.jobs.values()),
            books.abandoned[:],
            books.notes[:],
            books.timings.take(),
        )
        books.working.update(books.jobs)
        books.jobs.clear()
        books.abandoned.clear()
        books.notes.clear()
        return turn

    def used(self) -> dict[Account, Usage]:
        """What was used since the last call, to be written down."""
        return self.books.accounts.take()

    def restore(self, scheduler: list[ToScheduler], detokenizer: list[ToDetokenizer]) -> None:
        """Messages of the turn just taken that a full socket did not accept, in their order; they are given again."""
        pairs = {choice.stream: (request, choice) for request, choice in self.books.unfinished()}
        for to_scheduler in reversed(scheduler):
            self.books.scheduler.restore(to_scheduler, pairs)
        for to_detokenizer in reversed(detokenizer):
            self.books.detokenizer.restore(to_detokenizer, pairs)

    def recover(self, recovered: Recovered, now_ns: int) -> None:
        """Begin with what an earlier life had on record, and put everything on record from now on.

        To be called before anything else. Whoever is not finished goes on; its client has a while to come for it.
        """
        for request in recovery.recover(self.books, recovered, now_ns):
            self._patience.watch(request)

    def page(self, now_ns: int) -> Page | None:
        """What has to be on record before anything leaves that this turn has decided; None when nothing has.

        Then `written` or `unwritten` must be called with it, before any other event.
        """
        return self.books.page(now_ns)

    def written(self, page: Page) -> None:
        """The page is on record."""
        self.books.written(page)

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
        books, ledger = self.books, self.books.ledger
        capacity = books.credit.capacity
        return {
            "requests": len(ledger.live) + len(ledger.tokenizing),
            "streams": ledger.streams,
            "tokenizing": len(ledger.tokenizing),
            "attachments": len(books.delivery.attachments),
            "retained": len(ledger.requests) - len(ledger.live) - len(ledger.tokenizing),
            "orphans": len(books.orphans),
            "unread": len(books.unread),
            "timers": self._patience.timers,
            "awaited": books.accounts.awaited,
            "clients": len(books.delivery.clients),
            "answers_overflowed": books.delivery.overflowed,
            "waiting_for": books.waiting_for(),
            "totals": books.totals.as_counts(ledger.streams),
            "rejected": {code.value: count for code, count in books.totals.rejected.items()},
            "reclaims": {
                "count": books.reclaims.count,
                "blocks": books.reclaims.blocks,
                "steps_max": books.reclaims.steps_max,
                "steps": books.reclaims.steps,
                "delay_us_max": books.reclaims.delay_us_max,
                "delay_us_mean": books.reclaims.delay_us_sum / max(books.reclaims.count, 1),
            },
            "credit": {
                "sent": books.credit.sent,
                "submitted": capacity.submitted if capacity is not None else 0,
                "largest_tokens": books.credit.largest_tokens,
            },
            "traffic": showing.traffic(books),
            "tenants": showing.tenants(books),
        }

    def check(self) -> None:
        """Assert every invariant."""
        self.books.check()
        self._patience.check()

    def _arrival(self, arrival: Arrival) -> bool:
        client, left = self.delivery.hear(arrival.client, arrival.incarnation, arrival.now_ns)
        for request in left:
            if request.stage is not Stage.ENDED:
                self.books.left(request, arrival.now_ns)
        if client is None:
            return False
        self._take(client, arrival)
        return True

    def _take(self, client: Client, arrival: Arrival) -> None:
        match arrival.body:
            case Generate() as body:
                self._watch(intake.generate(self.books, client, arrival, body))
            case Preview() as body:
                self._watch(intake.preview(self.books, client, arrival, body))
            case Identify() as body:
                self._identify(client, body)
            case Inquire() as body:
                self._inquire(client, body, arrival.now_ns)
            case Attach() as body:
                self._attach(client, body)
            case Cancel() as body:
                self._cancel(client, body, arrival.now_ns)
            case Acknowledge() as body:
                self._acknowledge(client, body)
            case Describe():
                self.delivery.answer(client, self._description())
            case Ping():
                self.delivery.answer(client, Pong())
            case _:
                assert_never(arrival.body)

    def _watch(self, reserved: Request | None) -> None:
        if reserved is not None and reserved.stage is not Stage.ENDED:
            self._patience.watch(reserved)

    def _identify(self, client: Client, body: Identify) -> None:
        rule = self.books.policy.identify(body.credential)
        shown = body.id[: self._rules.request_id_characters_max]
        if rule is None:
            refusal = checks.unauthorized(body.credential)
            self.delivery.answer(client, Rejected(shown, refusal.code, refusal.reason, refusal.parameter))
        else:
            self.delivery.answer(client, Identified(shown, rule.name, rule.classes, rule.default_class))

    def _inquire(self, client: Client, body: Inquire, now_ns: int) -> None:
        shown = body.id[: self._rules.request_id_characters_max]
        rule = self.books.policy.identify(body.credential)
        request = None if rule is None else self.books.ledger.keys.get(Key(rule.name, body.request))
        if rule is None:
            refusal = checks.unauthorized(body.credential)
        elif request is None or request.preview:
            refusal = checks.unknown()
        else:
            self.delivery.answer(client, composing.standing(shown, request, now_ns))
            return
        self.delivery.answer(client, Rejected(shown, refusal.code, refusal.reason, refusal.parameter))

    def _attach(self, client: Client, body: Attach) -> None:
        shown = body.id[: self._rules.request_id_characters_max]
        rule = self.books.policy.identify(body.credential)
        if rule is None:
            self.books.refuse(client, client.id, shown, checks.unauthorized(body.credential))
            return
        client.tenants.add(rule.name)
        request = self.books.ledger.keys.get(Key(rule.name, body.id))
        if request is None or request.preview:
            self.books.refuse(client, client.id, shown, checks.unknown())
            return
        intake.attach(self.books, client, request, body.have)

    def _cancel(self, client: Client, body: Cancel, now_ns: int) -> None:
        request = self._found(client, body.id, body.credential, left=body.left)
        if request is None:
            return
        if body.left and (request.keep or request.background) and request.stage is not Stage.ENDED:
            self.books.left(request, now_ns)
            return
        if body.index is None or (request.stage is Stage.TOKENIZING and request.n == 1 and body.index == 0):
            self.books.cancel(request, now_ns, "cancelled by the client")
        elif 0 <= body.index < len(request.choices) and request.choices[body.index].end is None:
            choice = request.choices[body.index]
            self.books.end(request, choice, End.CANCELLED, now_ns, detail="cancelled by the client")

    def _acknowledge(self, client: Client, body: Acknowledge) -> None:
        for name in body.ids:
            request = self._found(client, name)
            if request is not None and request.stage is Stage.ENDED and not (request.keep or request.background):
                self.books.forget(request)

    def _found(self, client: Client, name: str, credential: str = "", *, left: bool = True) -> Request | None:
        """The request of this name that a client may end: of a tenant that it speaks for, and not another's to read."""
        tenants = dict.fromkeys(client.tenants)
        if credential or not self.books.policy.tenants:
            rule = self.books.policy.identify(credential)
            tenants = {rule.name: None} if rule is not None else {}
        for tenant in tenants:
            request = self.books.ledger.keys.get(Key(tenant, name))
            if request is not None and (self._owns(client, request) or (request.background and not left)):
                return request
        return None

    def _owns(self, client: Client, request: Request) -> bool:
        # An older connection that closes must not end what a newer one has taken over.
        attachment = self.delivery.attachments.get(request.number)
        return attachment is None or attachment.client is client

    def _description(self) -> Description:
        rules = self._rules
        # Who drains is not ready for more.
        waiting_for = (Service.ADMISSION.value,) if self.books.drain_ns is not None else self.books.waiting_for()
        return Description(
            rules.models, rules.context_tokens, waiting_for, rules.started_unix_s, rules.has_chat_template
        )

    def _news(self, news: News) -> None:
        match news.body:
            case Capacity() as capacity:
                self.books.credit.publish(capacity)
            case Reclaims() as reclaims:
                self.books.reclaims.add(reclaims)
                for entry in reclaims.entries:
                    account = self.books.accounts.reclaimed(entry)
                    if account is not None:
                        self.books.timings.reclaimed(account, entry.delay_us)
            case Expenses() as expenses:
                for spent in expenses.entries:
                    self._spent(spent, news.now_ns)
            case Texts() as texts:
                for run in texts.runs:
                    self._text(run, news.now_ns)
            case Unknown() as unknown:
                for stream in unknown.streams:
                    self._unknown(stream)
            case _:
                assert_never(news.body)

    def _spent(self, spent: Spent, now_ns: int) -> None:
        found = self.books.ledger.choice(spent.stream)
        tenant, owed = self.books.accounts.spent(spent, found[0] if found is not None else None)
        self.books.tenants.owe(tenant, owed, now_ns)

    def _text(self, run: TextRun, now_ns: int) -> None:
        found = self.books.ledger.choice(run.stream)
        if found is None or run.attempt < found[1].attempt:
            return
        request, choice = found
        if run.start > len(choice.ids):
            self.books.detokenizer.resend(choice)
            return
        if run.characters > choice.text.length:
            # Ids without a hole but text with one: only opening the stream again says how much text is here.
            self.books.detokenizer.open(request, choice)
            return
        if run.attempt > choice.attempt:
            self.books.ledger.truncate(choice, run.attempt, run.start, run.characters)
            self.books.record.truncated(choice)
            self.delivery.truncate(request, choice)
        self._emit(request, choice, run, now_ns)

    def _emit(self, request: Request, choice: Choice, run: TextRun, now_ns: int) -> None:
        ids = run.ids[len(choice.ids) - run.start :]
        text = run.text[choice.text.length - run.characters :]
        account, first = self.books.accounts.of(request), choice.first_token_ns is None
        self.books.timings.emitted(account, choice, len(ids), now_ns)
        self.books.ledger.emit(choice, ids, text, now_ns, run.logprobs[len(choice.ids) - run.start :])
        choice.cached_tokens = max(choice.cached_tokens, run.cached_tokens)
        choice.queue_us = max(choice.queue_us, run.queue_us)
        if choice.first_token_ns is not None:
            self.books.queues.remove(request)
            if first:
                self.books.timings.began(account, request, choice, now_ns)
        if ids or text:
            self.books.record.touched(choice)
        if run.end:
            end = End(run.end)
            self.books.end(request, choice, end, now_ns, proposed=True, matched=run.matched, detail=run.detail)
        else:
            self.delivery.touch(request, choice)

    def _unknown(self, stream: Stream) -> None:
        found = self.books.ledger.choice(stream)
        if found is not None:
            self.books.detokenizer.open(*found)
        elif self.books.scheduler.joined and self.books.ledger.over(stream):
            # The scheduler runs what nobody wants: it missed the end.
            self.books.scheduler.ended[stream] = None

    def _joined(self, peer: Service) -> None:
        if peer is Service.SCHEDULER:
            self.books.accounts.scheduler_left()
            self.books.scheduler.join(self.books.unfinished())
        elif peer is Service.DETOKENIZER:
            self.books.detokenizer.join(self.books.unfinished())

    def _lost(self, peer: Service) -> None:
        if peer is Service.SCHEDULER:
            self.books.scheduler.leave()
        elif peer is Service.DETOKENIZER:
            self.books.detokenizer.leave()
