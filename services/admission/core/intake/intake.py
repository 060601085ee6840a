"""Decides about each `Generate`: a place in the ledger, or a refusal that says why.

The key is reserved on receipt, before anything is tokenized, so that a request sent twice is one request. Credit is
reserved with it. What the scheduler would later have to refuse is refused here. A preview goes the same way and leaves
before the end, having taken nothing.
"""

from typing import Final

from noria.proto.base import End, Stream
from noria.proto.frontdoor import REQUEST_ID_CHARACTERS_MAX, Code, Generate, Have, Preview
from noria.services.admission.core.clients.client_session import ClientSession
from noria.services.admission.core.intake import checks, start_forecast
from noria.services.admission.core.intake.effective_sampling import (
    choice_seed,
    effective_sampling,
    effective_seed,
    end_ids,
)
from noria.services.admission.core.intake.validation import characters, id_problem, problem
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestKey, RequestStage
from noria.services.admission.core.state.admission_state import NOBODY, PREVIEW, AdmissionState
from noria.services.admission.core.state.events import (
    AcceptedLogEntry,
    AttachedLogEntry,
    ClientMessage,
    PromptTokenized,
    TokenizeJob,
)
from noria.services.admission.core.tenants.class_totals import UsageKey
from noria.services.admission.core.tenants.refusal import Refusal
from noria.services.admission.core.tenants.tenant_policy import TenantRule

_COMPLETE: Final = (End.STOP, End.LENGTH)


def generate(state: AdmissionState, client: ClientSession, message: ClientMessage, body: Generate) -> Request | None:
    """Take a `Generate`; returns the request that it reserved, if it did."""
    unnameable = id_problem(body.id)
    if unnameable is not None:
        state.refuse(client, client.id, body.id[:REQUEST_ID_CHARACTERS_MAX], unnameable)
        return None
    rule = state.policy.identify(body.credential)
    if rule is None:
        state.refuse(client, client.id, body.id, checks.unauthorized(body.credential))
        return None
    client.tenants.add(rule.name)
    known = state.ledger.keys.get(RequestKey(rule.name, body.id))
    if known is not None and _ended_incomplete(known, body) and not _still_reading(state, client, known):
        state.forget(known)
        known = None
    if known is not None:
        if known.digest != message.digest:
            state.refuse(client, client.id, body.id, _conflict(), state.usage_counters.of(known))
        else:
            attach(state, client, known)
        return None
    traffic_class = body.traffic_class or rule.default_class
    refusal = _refusal_before_tokenizing(state, rule, body, message.now_ns)
    if refusal is not None:
        usage_key = UsageKey(rule.name, traffic_class) if traffic_class in state.policy.classes else NOBODY
        state.refuse(client, client.id, body.id, refusal, usage_key)
        return None
    return _start(state, client, message, body, RequestKey(rule.name, body.id), traffic_class)


def preview(state: AdmissionState, client: ClientSession, message: ClientMessage, body: Preview) -> Request | None:
    """Take a `Preview`; returns what keeps its place while it is tokenized."""
    asked = body.request
    rule = state.policy.identify(asked.credential)
    refusal = id_problem(asked.id)
    if refusal is None and rule is None:
        refusal = checks.unauthorized(asked.credential)
    if refusal is None and rule is not None:
        key = RequestKey(rule.name, PREVIEW + asked.id)
        if (known := state.ledger.keys.get(key)) is not None:
            state.delivery.attach(client, known)  # asked again while its prompt is being tokenized
            return None
        refusal = _refusal_before_tokenizing(state, rule, asked, message.now_ns)
        if refusal is None:
            traffic_class = asked.traffic_class or rule.default_class
            return _start(state, client, message, asked, key, traffic_class, preview=True)
    assert refusal is not None
    shown = asked.id[:REQUEST_ID_CHARACTERS_MAX]
    state.answer_preview(client, refusal.forecast(shown, asked.traffic_class))
    return None


def attach(state: AdmissionState, client: ClientSession, request: Request, have: tuple[Have, ...] = ()) -> None:
    """A client takes over the streams of a request; it gets everything that it does not have."""
    state.delivery.attach(client, request, have)
    state.stop_waiting_for_reader(request)
    awaited = request.stage is RequestStage.TOKENIZING and request.client == client.id
    state.log_entries.append(AttachedLogEntry(client.id, request.key.id, request.number, awaited))


def tokenized(state: AdmissionState, event: PromptTokenized) -> None:
    """Take the tokenizer's result; one for a request that has gone meanwhile is dropped."""
    request = state.ledger.tokenizing.get(event.number)
    if request is None:
        return
    state.tokenizer.finished(event.number)
    if event.problem:
        state.refuse_reserved(request, Refusal(event.code, event.problem, event.parameter))
        return
    accept(state, request, event.ids, event.now_ns)


def accept(state: AdmissionState, request: Request, prompt: tuple[int, ...], now_ns: int) -> None:
    """Accept a reserved request with its prompt, or refuse it; a preview is answered with what would become of it."""
    refusal = checks.not_ready(state) or checks.invalid_prompt(prompt, state.limits.vocabulary)
    refusal = refusal or checks.too_long(state, request, len(prompt))
    if refusal is not None:
        state.refuse_reserved(request, refusal)
        return
    limit = checks.output_limit(state, request, len(prompt))
    given = request.sampling.max_tokens
    tenant = state.tenants.named(request.key.tenant)
    reservation = tenant.reservation(len(prompt), request.n, given, limit)
    expected = (reservation - len(prompt)) // request.n
    refusal = tenant.affords(reservation, now_ns) or start_forecast.deadline_refusal(
        state, request, len(prompt), expected, now_ns
    )
    refusal = refusal or checks.no_room(
        state, request.traffic_class, 0, len(prompt) * request.n, now_ns, shed=not request.preview
    )
    if refusal is not None:
        state.refuse_reserved(request, refusal)
    elif request.preview:
        _answer_preview(state, request, len(prompt), expected)
    else:
        tenant.charge(reservation, now_ns)
        request.reserved_tokens = reservation
        _accept(state, request, prompt, given if given is not None else limit, now_ns)


def _start(
    state: AdmissionState,
    client: ClientSession,
    message: ClientMessage,
    body: Generate,
    key: RequestKey,
    traffic_class: str,
    *,
    preview: bool = False,
) -> Request:
    request = _reserve(state, client, message, body, key, traffic_class, preview=preview)
    if body.token_ids is not None:
        accept(state, request, body.token_ids, message.now_ns)
    else:
        owner = f"{key.tenant} {traffic_class} {client.id}"
        within = message.within or message.traceparent
        job = TokenizeJob(request.number, owner, request.characters, body.prompt, body.messages, within)
        state.tokenizer.submit(job)
    return request


def _reserve(
    state: AdmissionState,
    client: ClientSession,
    message: ClientMessage,
    body: Generate,
    key: RequestKey,
    traffic_class: str,
    *,
    preview: bool,
) -> Request:
    seed = message.seed if body.sampling.seed is None else body.sampling.seed
    rule = state.class_rule(traffic_class)
    ttl_first_ms = rule.ttl_first_ms if body.ttl_first_ms is None else body.ttl_first_ms
    ttl_ms = rule.ttl_ms if body.ttl_ms is None else body.ttl_ms
    request = Request(
        number=state.ledger.draw_number(),
        key=key,
        client=client.id,
        digest=message.digest,
        model=body.model or state.limits.models[0],
        sampling=body.sampling,
        n=body.n,
        seed=effective_seed(seed),
        traceparent=message.traceparent,
        traffic_class=traffic_class,
        received_ns=message.now_ns,
        deadline_first_ns=_deadline(message.now_ns, ttl_first_ms),
        deadline_ns=_deadline(message.now_ns, ttl_ms),
        characters=characters(body),
        preview=preview,
        keep=body.keep,
        background=body.background,
        grace_ns=state.limits.client_timeout_ns if body.grace_ms is None else body.grace_ms * 1_000_000,
    )
    state.ledger.reserve(request)
    state.delivery.attach(client, request)
    state.credit.reserve(request.reserved_streams, traffic_class)
    state.tenants.named(key.tenant).streams += request.reserved_streams
    state.tokenizer.reserve(request)
    return request


def _accept(state: AdmissionState, request: Request, prompt: tuple[int, ...], max_tokens: int, now_ns: int) -> None:
    """Accept a request that every check has passed, with its settled sampling parameters."""
    request.end_ids = end_ids(request.sampling, state.limits.eos_ids)
    choices = [
        ChoiceRecord(
            Stream(request.number, index),
            effective_sampling(request.sampling, choice_seed(request.seed, index), max_tokens, state.limits.vocabulary),
        )
        for index in range(request.n)
    ]
    state.accept(request, prompt, choices, now_ns)
    state.log_entries.append(
        AcceptedLogEntry(
            request.client,
            request.key.id,
            request.number,
            len(prompt),
            request.n,
            request.key.tenant,
            request.traffic_class,
            request.traceparent,
        )
    )


def _answer_preview(state: AdmissionState, request: Request, prompt_tokens: int, expected: int) -> None:
    attachment = state.delivery.attachments.get(request.number)
    state.leave_tokenizing(request)
    state.forget(request)
    name = request.key.id.removeprefix(PREVIEW)
    answer = start_forecast.forecast(state, request, name, prompt_tokens, expected)
    state.answer_preview(attachment.client if attachment is not None else None, answer)


def _refusal_before_tokenizing(state: AdmissionState, rule: TenantRule, body: Generate, now_ns: int) -> Refusal | None:
    """The first reason to refuse a request that can be found before its prompt is tokenized; None if there is none."""
    traffic_class = body.traffic_class or rule.default_class
    return (
        checks.class_denied(state, rule, traffic_class)
        or problem(body, state.limits)
        or checks.beyond_limits(state.class_rule(traffic_class), rule, body)
        or checks.not_ready(state)
        or checks.over_limits(state, state.tenants.get(rule, now_ns), traffic_class, body, now_ns)
    )


def _ended_incomplete(known: Request, body: Generate) -> bool:
    """Whether a request under an idempotency key is over without its answer, so that a repetition tries again."""
    return (
        body.keep and known.stage is RequestStage.ENDED and not all(choice.end in _COMPLETE for choice in known.choices)
    )


def _still_reading(state: AdmissionState, client: ClientSession, known: Request) -> bool:
    """Whether a client is still owed the end, so that it asks for this answer and not for another."""
    attachment = state.delivery.attachments.get(known.number)
    return attachment is not None and attachment.client is client


def _deadline(now_ns: int, ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else now_ns + ttl_ms * 1_000_000


def _conflict() -> Refusal:
    return Refusal(
        Code.CONFLICT,
        "another request with this id is alive or was a moment ago; draw a new id for a new request",
        "id",
    )
