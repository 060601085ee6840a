"""Sends the output of requests to the clients attached to them.

Nothing is copied for a client that does not read: a cursor per stream says what it has been sent, and everything after
it goes into one delta when its socket takes messages again. Refusals, which no ledger holds, wait in a bounded queue.
The newest attachment to a request owns its streams.
"""

from collections.abc import Iterator
from typing import Final

from noria.proto.frontdoor import Accepted, Delta, Description, Finished, Have, Pong, Updates
from noria.services.admission.core.clients import replies
from noria.services.admission.core.clients.client_session import (
    RETRY_NS_MAX,
    RETRY_NS_MIN,
    ClientAnswer,
    ClientAttachment,
    ClientSession,
    CursorAdvance,
    DeliveryCursor,
    PendingDelivery,
)
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestStage
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits

_UNACKNOWLEDGED_MAX: Final = 1024


class ClientDelivery:
    """All clients, those with the oldest last message first, and all attachments by request number."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self.clients: dict[str, ClientSession] = {}
        self.attachments: dict[int, ClientAttachment] = {}
        self.overflowed = 0
        self._due: dict[str, ClientSession] = {}

    def register(self, name: str, incarnation: int, now_ns: int) -> tuple[ClientSession | None, list[Request]]:
        """Note a message of a client, and create its session if it is new; None if there are `clients_max` already.

        Also returns the requests of an earlier process with the same name, which have lost their reader.
        """
        client = self.clients.pop(name, None)
        left: list[Request] = []
        if client is not None and client.incarnation != incarnation:
            left = self.remove(client)
            client = None
        if client is None:
            if len(self.clients) >= self._limits.clients_max:
                return None, left
            client = ClientSession(name, incarnation, now_ns)
        client.heard_ns = now_ns
        self.clients[name] = client
        return client, left

    def remove(self, client: ClientSession) -> list[Request]:
        """Remove a client. Returns the requests that it was attached to."""
        self.clients.pop(client.id, None)
        self._due.pop(client.id, None)
        left = [attachment.request for attachment in client.attachments.values()]
        for request in left:
            self.detach(request)
        return left

    def silent_clients(self, now_ns: int) -> Iterator[ClientSession]:
        """Clients not heard of for the timeout, longest first; each must be removed before the next is asked for."""
        while self.clients:
            client = next(iter(self.clients.values()))
            if now_ns - client.heard_ns < self._limits.client_timeout_ns:
                return
            yield client
            assert client.id not in self.clients

    def oldest_heard_ns(self) -> int | None:
        """When the most silent client was last heard."""
        return next(iter(self.clients.values())).heard_ns if self.clients else None

    def answer(self, client: ClientSession, answer: ClientAnswer) -> None:
        """Queue something that is not about a request in the ledger; repeated answers to questions are merged."""
        if isinstance(answer, Description | Pong) and any(type(each) is type(answer) for each in client.answers):
            return
        if len(client.answers) >= self._limits.answers_max:
            self.overflowed += 1
            return
        client.answers.append(answer)
        self._due[client.id] = client

    def attach(self, client: ClientSession, request: Request, have: tuple[Have, ...] = ()) -> None:
        """Make a client the owner of a request's streams; it is announced again and sent what it lacks."""
        self.detach(request)
        attachment = ClientAttachment(request, client)
        self.attachments[request.number] = client.attachments[request.number] = attachment
        if request.stage is not RequestStage.TOKENIZING:
            self._start_sending(attachment, have)

    def accepted(self, request: Request) -> None:
        """Announce a request that was accepted to the client attached to it."""
        attachment = self.attachments.get(request.number)
        if attachment is not None:
            self._start_sending(attachment, ())

    def detach(self, request: Request) -> None:
        """End the attachment of a request, if it has one."""
        attachment = self.attachments.pop(request.number, None)
        if attachment is None:
            return
        client = attachment.client
        del client.attachments[request.number]
        client.unannounced.pop(request.number, None)
        for choice in request.choices:
            client.changed.pop(choice.stream, None)

    def stream_changed(self, request: Request, choice: ChoiceRecord) -> None:
        """Note that a stream has output or an end to be sent."""
        attachment = self.attachments.get(request.number)
        if attachment is not None:
            attachment.client.changed[choice.stream] = attachment
            self._due[attachment.client.id] = attachment.client

    def truncate(self, request: Request, choice: ChoiceRecord) -> None:
        """Move the cursor of a stream back to what the stream still holds, after it went back to an earlier position."""
        attachment = self.attachments.get(request.number)
        if attachment is not None:
            cursor = attachment.cursors[choice.stream.choice]
            cursor.ids = min(cursor.ids, len(choice.ids))
            cursor.characters = min(cursor.characters, choice.text.length)

    def due(self, now_ns: int) -> list[ClientSession]:
        """Clients with something to send whose sockets are worth trying."""
        return [client for client in self._due.values() if client.retry_ns <= now_ns]

    def retry_ns(self) -> int | None:
        """When the next socket is worth trying again."""
        return min((client.retry_ns for client in self._due.values()), default=None)

    def next_message(self, client: ClientSession) -> PendingDelivery | None:
        """The next message for a client, or None when it has been sent everything."""
        if client.answers:
            return PendingDelivery(client, client.answers[0])
        for attachment in client.unannounced.values():
            return PendingDelivery(
                client, replies.accepted(attachment.request, self._limits.client_timeout_ns), announced=attachment
            )
        while client.changed:
            message = self._updates(client)
            if message.body != Updates():
                return message
            for advance in message.advances:
                self._advance_cursor(client, advance)
        self._due.pop(client.id, None)
        return None

    def mark_sent(self, message: PendingDelivery) -> None:
        """A message has gone: advance the cursors."""
        client = message.client
        client.sequence += 1
        client.retry_ns, client.backoff_ns = 0, RETRY_NS_MIN
        match message.body:
            case Accepted():
                assert message.announced is not None
                del client.unannounced[message.announced.request.number]
            case Updates():
                for advance in message.advances:
                    self._advance_cursor(client, advance)
            case _:
                client.answers.popleft()

    def retry_later(self, client: ClientSession, now_ns: int) -> None:
        """The socket did not take a message; try again later, each time a little later."""
        client.retry_ns = now_ns + client.backoff_ns
        client.backoff_ns = min(client.backoff_ns * 2, RETRY_NS_MAX)

    def owed_clients(self) -> list[ClientSession]:
        """Clients that have still to be sent something, or to say that they have read the end of an answer."""
        return [client for client in self.clients.values() if client.unacknowledged or client.id in self._due]

    def check(self) -> None:
        """Assert that attachments and clients agree, and that no cursor is ahead of the ledger."""
        for number, attachment in self.attachments.items():
            assert attachment.request.number == number
            assert attachment.client.attachments[number] is attachment
            assert self.clients[attachment.client.id] is attachment.client
            assert len(attachment.cursors) == len(attachment.request.choices)
            for cursor, choice in zip(attachment.cursors, attachment.request.choices, strict=True):
                assert 0 <= cursor.ids <= len(choice.ids) and 0 <= cursor.characters <= choice.text.length
                lacking = cursor.ids < len(choice.ids) or (choice.end is not None and not cursor.ended)
                assert not lacking or choice.stream in attachment.client.changed
        assert sum(len(client.attachments) for client in self.clients.values()) == len(self.attachments)
        heard = [client.heard_ns for client in self.clients.values()]
        assert heard == sorted(heard)
        for client in self.clients.values():
            assert len(client.answers) <= self._limits.answers_max
            owed = bool(client.answers or client.unannounced or client.changed)
            assert not owed or client.id in self._due
            assert client.unannounced.keys() <= client.attachments.keys()
            assert all(self.attachments[stream.request] is each for stream, each in client.changed.items())

    def _start_sending(self, attachment: ClientAttachment, have: tuple[Have, ...]) -> None:
        request, client = attachment.request, attachment.client
        attachment.cursors = [DeliveryCursor() for _ in request.choices]
        for each in have:
            if not 0 <= each.index < len(request.choices):
                continue
            choice, cursor = request.choices[each.index], attachment.cursors[each.index]
            if each.attempt == choice.attempt:
                cursor.attempt = each.attempt
                cursor.ids = min(max(each.ids, 0), len(choice.ids))
                cursor.characters = min(max(each.characters, 0), choice.text.length)
        client.unannounced[request.number] = attachment
        for choice in request.choices:
            client.changed[choice.stream] = attachment
        self._due[client.id] = client

    def _updates(self, client: ClientSession) -> PendingDelivery:
        deltas: list[Delta] = []
        finished: list[Finished] = []
        advances: list[CursorAdvance] = []
        tokens = 0
        for stream, attachment in client.changed.items():
            request = attachment.request
            choice = request.choices[stream.choice]
            cursor = attachment.cursors[stream.choice]
            delta = replies.delta(request, choice, cursor, self._limits.update_tokens_max)
            if delta is not None:
                deltas.append(delta)
                tokens += len(delta.ids) * replies.tokens_in_message(choice)
            ids = cursor.ids if delta is None else delta.start + len(delta.ids)
            characters = cursor.characters if delta is None else delta.characters + len(delta.text)
            whole = ids == len(choice.ids)
            if choice.end is not None and whole:
                finished.append(replies.finished(request, choice))
            advances.append(
                CursorAdvance(
                    attachment, choice, cursor, choice.attempt, ids, characters, choice.end is not None and whole
                )
            )
            if tokens >= self._limits.update_tokens_max:
                break
        return PendingDelivery(client, Updates(tuple(deltas), tuple(finished)), advances=tuple(advances))

    def _advance_cursor(self, client: ClientSession, advance: CursorAdvance) -> None:
        cursor, choice = advance.cursor, advance.choice
        cursor.attempt, cursor.ids, cursor.characters, cursor.ended = (
            advance.attempt,
            advance.ids,
            advance.characters,
            advance.ended,
        )
        if advance.ids == len(choice.ids):
            del client.changed[choice.stream]
        if advance.ended and all(each.ended for each in advance.attachment.cursors):
            self.detach(advance.attachment.request)
            client.unacknowledged[advance.attachment.request.key.id] = None
            if len(client.unacknowledged) > _UNACKNOWLEDGED_MAX:  # it never acknowledges
                del client.unacknowledged[next(iter(client.unacknowledged))]
