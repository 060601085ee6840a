"""Handles the messages of clients: generate, preview, attach, cancel, acknowledge, and questions.

Decides which tenant a client speaks for; `intake` decides whether a request is accepted.
"""

from typing import assert_never

from noria.proto.base import End, Service
from noria.proto.frontdoor import (
    REQUEST_ID_CHARACTERS_MAX,
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
)
from noria.services.admission.core.clients import replies
from noria.services.admission.core.clients.client_session import ClientSession
from noria.services.admission.core.intake import checks, intake
from noria.services.admission.core.ledger.request import Request, RequestKey, RequestStage
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.state.events import ClientMessage
from noria.services.admission.core.timeouts import RequestTimeouts


class ClientHandler:
    """Applies the messages of clients to the state. timeouts: gets the deadlines of new requests."""

    def __init__(self, state: AdmissionState, timeouts: RequestTimeouts) -> None:
        self._state = state
        self._timeouts = timeouts

    def handle(self, message: ClientMessage) -> bool:
        """Apply one message. Returns False if it comes from a new client and there are already `clients_max`."""
        client, left = self._state.delivery.register(message.client, message.incarnation, message.now_ns)
        for request in left:
            if request.stage is not RequestStage.ENDED:
                self._state.client_gone(request, message.now_ns)
        if client is None:
            return False
        self._dispatch(client, message)
        return True

    def _dispatch(self, client: ClientSession, message: ClientMessage) -> None:
        match message.body:
            case Generate() as body:
                self._watch(intake.generate(self._state, client, message, body))
            case Preview() as body:
                self._watch(intake.preview(self._state, client, message, body))
            case Identify() as body:
                self._identify(client, body)
            case Inquire() as body:
                self._inquire(client, body, message.now_ns)
            case Attach() as body:
                self._attach(client, body)
            case Cancel() as body:
                self._cancel(client, body, message.now_ns)
            case Acknowledge() as body:
                self._acknowledge(client, body)
            case Describe():
                self._state.delivery.answer(client, self._description())
            case Ping():
                self._state.delivery.answer(client, Pong())
            case _:
                assert_never(message.body)

    def _watch(self, reserved: Request | None) -> None:
        if reserved is not None and reserved.stage is not RequestStage.ENDED:
            self._timeouts.watch(reserved)

    def _identify(self, client: ClientSession, body: Identify) -> None:
        rule = self._state.policy.identify(body.credential)
        shown = body.id[:REQUEST_ID_CHARACTERS_MAX]
        if rule is None:
            refusal = checks.unauthorized(body.credential)
            self._state.delivery.answer(client, refusal.rejected(shown))
        else:
            self._state.delivery.answer(client, Identified(shown, rule.name, rule.classes, rule.default_class))

    def _inquire(self, client: ClientSession, body: Inquire, now_ns: int) -> None:
        shown = body.id[:REQUEST_ID_CHARACTERS_MAX]
        rule = self._state.policy.identify(body.credential)
        request = None if rule is None else self._state.ledger.keys.get(RequestKey(rule.name, body.request))
        if rule is None:
            refusal = checks.unauthorized(body.credential)
        elif request is None or request.preview:
            refusal = checks.unknown()
        else:
            self._state.delivery.answer(client, replies.standing(shown, request, now_ns))
            return
        self._state.delivery.answer(client, refusal.rejected(shown))

    def _attach(self, client: ClientSession, body: Attach) -> None:
        shown = body.id[:REQUEST_ID_CHARACTERS_MAX]
        rule = self._state.policy.identify(body.credential)
        if rule is None:
            self._state.refuse(client, client.id, shown, checks.unauthorized(body.credential))
            return
        client.tenants.add(rule.name)
        request = self._state.ledger.keys.get(RequestKey(rule.name, body.id))
        if request is None or request.preview:
            self._state.refuse(client, client.id, shown, checks.unknown())
            return
        intake.attach(self._state, client, request, body.have)

    def _cancel(self, client: ClientSession, body: Cancel, now_ns: int) -> None:
        request = self._found(client, body.id, body.credential, left=body.left)
        if request is None:
            return
        if body.left and (request.keep or request.background) and request.stage is not RequestStage.ENDED:
            self._state.reader_left(request, now_ns)
            return
        if body.index is None or (request.stage is RequestStage.TOKENIZING and request.n == 1 and body.index == 0):
            self._state.cancel(request, now_ns, "cancelled by the client")
        elif 0 <= body.index < len(request.choices) and request.choices[body.index].end is None:
            choice = request.choices[body.index]
            self._state.end(request, choice, End.CANCELLED, now_ns, detail="cancelled by the client")

    def _acknowledge(self, client: ClientSession, body: Acknowledge) -> None:
        for name in body.ids:
            client.unacknowledged.pop(name, None)
            request = self._found(client, name)
            if request is not None and request.stage is RequestStage.ENDED and not (request.keep or request.background):
                self._state.forget(request)

    def _found(self, client: ClientSession, name: str, credential: str = "", *, left: bool = True) -> Request | None:
        """Find the request of this id that a client may end.

        It belongs to a tenant that the client speaks for, and no other client reads it. None if there is no such request.
        """
        tenants = dict.fromkeys(client.tenants)
        if credential or not self._state.policy.tenants:
            rule = self._state.policy.identify(credential)
            tenants = {rule.name: None} if rule is not None else {}
        for tenant in tenants:
            request = self._state.ledger.keys.get(RequestKey(tenant, name))
            if request is not None and (self._owns(client, request) or (request.background and not left)):
                return request
        return None

    def _owns(self, client: ClientSession, request: Request) -> bool:
        # An older connection that closes must not end what a newer one has taken over.
        attachment = self._state.delivery.attachments.get(request.number)
        return attachment is None or attachment.client is client

    def _description(self) -> Description:
        limits = self._state.limits
        # Who drains is not ready for more.
        waiting_for = (Service.ADMISSION.value,) if self._state.drain_ns is not None else self._state.waiting_for()
        return Description(
            limits.models, limits.context_tokens, waiting_for, limits.started_unix_s, limits.has_chat_template
        )
