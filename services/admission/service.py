"""Admission's shell: two mailboxes and a tokenizer pool around the pure core.

Mail and results go in as events; once per turn what the core wants done is done: one message per edge, one or a few per
client with news, log events, spans.
"""

import re
import secrets
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from noria.proto.base import Header, Service
from noria.proto.frontdoor import Generate, Pong
from noria.proto.lifecycle import State
from noria.proto.output import Texts, Unknown
from noria.proto.scheduling import Capacity, Expenses, Reclaims, Suspected
from noria.services.admission.core.admission import Admission
from noria.services.admission.core.clients.client_session import ClientSession
from noria.services.admission.core.state.events import (
    AdmissionOutput,
    ClientMessage,
    ClockTick,
    DrainRequested,
    FromClient,
    PeerJoined,
    PeerLost,
    PeerMessage,
    PromptTokenized,
    TenancyChanged,
)
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.tenant_policy import TenantPolicy
from noria.services.admission.metrics import ClassMetrics
from noria.services.admission.public_mailbox import PublicMailbox, SendResult
from noria.services.admission.request_log import RequestLog
from noria.services.admission.request_names import RequestNames
from noria.services.admission.storage.journal import Journal
from noria.services.admission.storage.journal_records import WallClockOffset
from noria.services.admission.storage.usage_writer import UsageWriter
from noria.services.admission.tokenizer_pool import TokenizerPool
from noria.shared.actor.actor import Actor
from noria.shared.telemetry.instruments import ADMISSION_METRICS
from noria.shared.telemetry.telemetry import Telemetry

_MAIL_PER_TURN_MAX: Final = 256
_FAREWELL_NS: Final = 3_000_000_000
_FAREWELL_POLL_MS: Final = 20
_TRACEPARENT: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def first_number() -> int:
    """A request number above all that an earlier life can have used: the time in microseconds, with room for as many."""
    return time.time_ns() // 1_000


class AdmissionService:
    """The shell of one admission process. Closes the public mailbox and the tokenizer pool when the actor stops.

    With a journal it begins with what that holds, and what a turn decides is on record before any of it leaves.
    Raises UserError when the journal cannot be read.
    """

    def __init__(
        self,
        actor: Actor,
        telemetry: Telemetry,
        mailbox: PublicMailbox,
        pool: TokenizerPool,
        limits: AdmissionLimits,
        policy: TenantPolicy,
        usage: UsageWriter,
        journal: Journal | None = None,
    ) -> None:
        self._actor = actor
        self._mailbox = mailbox
        self._pool = pool
        self._core = Admission(limits, first_number(), policy)
        self._usage = usage
        self._core.resume_costs(usage.recorded)
        self._journal = journal
        if journal is not None:
            now_ns = time.monotonic_ns()
            self._core.recover(journal.read(now_ns, WallClockOffset.read()), now_ns)
            telemetry.continue_since(ADMISSION_METRICS, journal.began_unix_ns())
        telemetry.add(ClassMetrics(self._core.state, telemetry.settings.tenants_max))
        self._request_log = RequestLog(telemetry)
        self._request_names = RequestNames()
        actor.on_question(self._request_names.answer)
        self._digests = msgspec.msgpack.Encoder()
        self._draining = self._handed_over = False
        self._congested = 0
        self._taken = 0
        actor.watch(mailbox.socket, self._receive_from_clients)

    def receive(self, sender: Service, header: Header, body: msgspec.Struct) -> None:
        """Apply one message of a peer."""
        match body:
            case Capacity() | Reclaims() | Expenses() | Suspected() | Texts() | Unknown():
                self._taken += 1
                self._core.apply(PeerMessage(body, time.monotonic_ns(), header.incarnation))
            case _:
                raise AssertionError(f"{sender} sent {header.kind}")

    def joined(self, peer: Service) -> None:
        """Sends every unfinished stream to a peer that has started or reconnected."""
        self._core.apply(PeerJoined(peer))

    def lost(self, peer: Service) -> None:
        """Stops accepting requests until the peer is back; accepted requests wait for it."""
        self._core.apply(PeerLost(peer))

    def congested(self, peer: Service) -> None:
        """Counts a full outbox; `_send_to_peers` puts the messages back that it did not take."""
        del peer
        self._congested += 1

    def advance(self, now_ns: int) -> int | None:
        """Runs one turn: tokenizer results, timeouts, journal, log, messages to peers, tokenizer and clients.

        Returns the monotonic time in nanoseconds at which the next turn is due, None if nothing is timed.
        """
        for result in self._pool.collect():
            self._request_log.tokenized(result)
            self._core.apply(
                PromptTokenized(result.job.number, now_ns, result.ids, result.problem, result.parameter, result.code)
            )
        self._core.apply(ClockTick(now_ns))
        used_ns = self._write_journal(now_ns)
        turn = self._core.take(now_ns)
        for entry in turn.log_entries:
            self._request_log.write(entry)
            self._request_names.write(entry)
        self._send_to_peers(turn)
        for number in turn.abandoned:
            self._pool.abandon(number)
        for job in turn.jobs:
            self._pool.submit(job)
        for client in self._core.delivery.due(now_ns):
            self._send_to_client(client, now_ns)
        wanted = (self._core.next_wakeup_ns(), used_ns)
        return min((each for each in wanted if each is not None), default=None)

    def change_policy(self, policy: TenantPolicy) -> None:
        """Apply changed classes and tenants; requests in flight go on."""
        self._core.apply(TenancyChanged(policy, time.monotonic_ns()))

    def state(self) -> State:
        """READY from the start: the tokenizer is loaded before the mailbox is bound. STOPPED: drained, nothing is left to do."""
        if self._core.drained:
            return State.STOPPED
        return State.DRAINING if self._draining else State.READY

    def progress(self) -> tuple[int, bool]:
        """Messages taken, and whether a request is unfinished."""
        return self._taken, self._core.busy

    def snapshot(self) -> dict[str, Any]:
        """Counts of the core, the public mailbox and the tokenizer pool, as `/debug/state` shows them."""
        return {
            **self._core.snapshot(),
            "malformed": self._mailbox.malformed,
            "congested": self._congested,
            "tokenizer": self._pool.counts(),
            **({} if self._journal is None else {"journal": self._journal.report()}),
        }

    def drain(self, timeout_ms: int) -> None:
        """Accept nothing more; shed what is unfinished after the time."""
        self._draining = True
        self._core.apply(DrainRequested(time.monotonic_ns() + timeout_ms * 1_000_000))

    def close(self) -> None:
        """Release the socket and the threads.

        Clients are sent the ends of their requests, unless a new process continues them: with a journal and without
        a drain they get nothing and ask again. What the journal holds stays there in either case.
        """
        try:
            if self._journal is not None:
                self._write_journal(time.monotonic_ns())
                self._core.stop_journaling()
                self._handed_over = True
            if self._journal is None or self._draining:
                self.drain(0)
                self._say_goodbye_to_clients()
        finally:
            self._mailbox.close()
            self._pool.close()
            self._usage.close()

    def _say_goodbye_to_clients(self) -> None:
        """Tell all clients how their requests ended, and wait until they have read it.

        A client's socket drops unread messages when the connection ends, so this waits for its acknowledgement, at most 3 s.
        """
        delivery = self._core.delivery
        until_ns = time.monotonic_ns() + _FAREWELL_NS
        self.advance(time.monotonic_ns())
        while (clients := delivery.owed_clients()) and (now_ns := time.monotonic_ns()) < until_ns:
            for client in clients:
                delivery.answer(client, Pong())  # to see whether its connection is still there
            for client in delivery.due(now_ns):
                if self._send_to_client(client, now_ns) is SendResult.GONE:
                    delivery.remove(client)
            self._mailbox.socket.poll(_FAREWELL_POLL_MS)
            self._receive_from_clients()
        self.advance(time.monotonic_ns())

    def _receive_from_clients(self) -> None:
        for name, header, body in self._mailbox.receive(_MAIL_PER_TURN_MAX):
            self._taken += 1
            if not self._core.apply(self._client_message(name, header, body)):
                self._mailbox.refuse(name, header.kind, "too many clients are connected; try again later")
                if isinstance(body, Generate):
                    self._request_log.turned_away(name, body.id)

    def _client_message(self, name: str, header: Header, body: FromClient) -> ClientMessage:
        now_ns = time.monotonic_ns()
        traceparent = header.traceparent if _TRACEPARENT.fullmatch(header.traceparent) else ""
        if not isinstance(body, Generate):
            return ClientMessage(name, header.incarnation, body, now_ns, traceparent=traceparent)
        traceparent, within = self._request_log.received(name, body.id, traceparent)
        seed = secrets.randbits(63)
        return ClientMessage(name, header.incarnation, body, now_ns, self._digest(body), seed, traceparent, within)

    def _digest(self, body: Generate) -> bytes:
        # Credentials may be renewed between two tries of one request, and must not end up anywhere; a gateway may be
        # started again with another patience.
        same = msgspec.structs.replace(body, credential="", grace_ms=None)
        return blake2b(self._digests.encode(same), digest_size=16).digest()

    def _write_journal(self, now_ns: int) -> int | None:
        """Writes what must be on disk before any message of this turn is sent.

        Returns the monotonic time in nanoseconds at which usage is written again, None if no usage waits.
        """
        used = self._core.take_usage()
        if self._handed_over:
            return None  # the next life will say what was used
        self._usage.add(*used)
        again_ns = self._write_page_or_usage(now_ns)
        self._core.confirm_costs(self._usage.recorded)
        return again_ns

    def _write_page_or_usage(self, now_ns: int) -> int | None:
        if self._journal is None:
            return self._usage.advance(now_ns)
        page = self._core.next_page(now_ns)
        if page is None:
            # What a stream cost comes after its end and can wait, but not before a page that says that it has ended.
            return None if self._core.stuck else self._usage.advance(now_ns)
        if self._journal.write(page, WallClockOffset.read(), self._usage.writes()):
            self._core.page_written(page)
            self._usage.written()
        else:
            self._core.page_failed(now_ns)
        return None

    def _send_to_peers(self, turn: AdmissionOutput) -> None:
        scheduler = self._send(Service.SCHEDULER, turn.scheduler)
        detokenizer = self._send(Service.DETOKENIZER, turn.detokenizer)
        if scheduler or detokenizer:
            self._core.restore(
                turn.scheduler[len(turn.scheduler) - scheduler :],
                turn.detokenizer[len(turn.detokenizer) - detokenizer :],
            )

    def _send(self, peer: Service, messages: Sequence[msgspec.Struct]) -> int:
        """Send in order; returns how many at the end a full outbox left."""
        for position, message in enumerate(messages):
            if not self._actor.send(self, peer, message):
                return len(messages) - position if self._actor.mailbox.links[peer].joined else 0
        return 0

    def _send_to_client(self, client: ClientSession, now_ns: int) -> SendResult:
        """Send what a client is owed, until its socket takes no more; returns what became of the last message."""
        delivery = self._core.delivery
        while (message := delivery.next_message(client)) is not None:
            outcome = self._mailbox.send(client.id, client.incarnation, client.sequence + 1, message.body)
            if outcome is not SendResult.SENT:
                delivery.retry_later(client, now_ns)
                return outcome
            delivery.mark_sent(message)
        return SendResult.SENT
