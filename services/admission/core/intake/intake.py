"""From a `Generate` to a place in the ledger, or a refusal that says why.

The key is reserved on receipt, before anything is tokenized, so that a request sent twice is one request. Credit is
reserved with it. What the scheduler would later have to refuse is refused here. A preview goes the same way and leaves
before the end, having taken nothing.
"""

from typing import Final

from noria.proto.base import End, Stream
from noria.proto.frontdoor import REQUEST_ID_CHARACTERS_MAX, Code, Generate, Have, Preview
from noria.services.admission.core.clients.client_session import ClientSession
from noria.services.admission.core.intake import checks, start_forecast
from noria.services.admission.core.intake.settled_sampling import choice_seed, effective_seed, end_ids, settle
from noria.services.admission.core.intake.validation import characters, id_problem, problem
from noria.services.admission.core.ledger.request import ChoiceState, Request, RequestKey, RequestStage
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

_WHOLE: Final = (End.STOP, End.LENGTH)


def generate(books: AdmissionState, client: ClientSession, arrival: ClientMessage, body: Generate) -> Request | None:
    """Take a `Generate`; returns the request that it reserved, if it did."""
    unnameable = id_problem(body.id)
    if unnameable is not None:
        books.refuse(client, client.id, body.id[:REQUEST_ID_CHARACTERS_MAX], unnameable)
        return None
    rule = books.policy.identify(body.credential)
    if rule is None:
        books.refuse(client, client.id, body.id, checks.unauthorized(body.credential))
        return None
    client.tenants.add(rule.name)
    known = books.ledger.keys.get(RequestKey(rule.name, body.id))
    if known is not None and _came_to_nothing(known, body) and not _is_told(books, client, known):
        books.forget(known)
        known = None
    if known is not None:
        if known.digest != arrival.digest:
            books.refuse(client, client.id, body.id, _conflict(), books.accounts.of(known))
        else:
            attach(books, client, known)
        return None
    traffic_class = body.traffic_class or rule.default_class
    refusal = _problem(books, rule, body, arrival.now_ns)
    if refusal is not None:
        account = UsageKey(rule.name, traffic_class) if traffic_class in books.policy.classes else NOBODY
        books.refuse(client, client.id, body.id, refusal, account)
        return None
    return _begin(books, client, arrival, body, RequestKey(rule.name, body.id), traffic_class)


def preview(books: AdmissionState, client: ClientSession, arrival: ClientMessage, body: Preview) -> Request | None:
    """Take a `Preview`; returns what keeps its place while it is tokenized."""
    asked = body.request
    rule = books.policy.identify(asked.credential)
    refusal = id_problem(asked.id)
    if refusal is None and rule is None:
        refusal = checks.unauthorized(asked.credential)
    if refusal is None and rule is not None:
        key = RequestKey(rule.name, PREVIEW + asked.id)
        if (known := books.ledger.keys.get(key)) is not None:
            books.delivery.attach(client, known)  # asked again while its prompt is being tokenized
            return None
        refusal = _problem(books, rule, asked, arrival.now_ns)
        if refusal is None:
            traffic_class = asked.traffic_class or rule.default_class
            return _begin(books, client, arrival, asked, key, traffic_class, preview=True)
    assert refusal is not None
    shown = asked.id[:REQUEST_ID_CHARACTERS_MAX]
    books.foretell(client, refusal.forecast(shown, asked.traffic_class))
    return None


def attach(books: AdmissionState, client: ClientSession, request: Request, have: tuple[Have, ...] = ()) -> None:
    """A client takes over the streams of a request; it gets everything that it does not have."""
    books.delivery.attach(client, request, have)
    books.found(request)
    awaited = request.stage is RequestStage.TOKENIZING and request.client == client.id
    books.notes.append(AttachedLogEntry(client.id, request.key.id, request.number, awaited))


def tokenized(books: AdmissionState, event: PromptTokenized) -> None:
    """Take the tokenizer's result; one for a request that has gone meanwhile is dropped."""
    request = books.ledger.tokenizing.get(event.number)
    if request is None:
        return
    books.tokenizer.answered(event.number)
    if event.problem:
        books.refuse_reserved(request, Refusal(event.code, event.problem, event.parameter))
        return
    accept(books, request, event.ids, event.now_ns)


def accept(books: AdmissionState, request: Request, prompt: tuple[int, ...], now_ns: int) -> None:
    """Accept a reserved request with its prompt, or refuse it; a preview is told what would become of it."""
    refusal = checks.unready(books) or checks.unusable(prompt, books.rules.vocabulary)
    refusal = refusal or checks.too_long(books, request, len(prompt))
    if refusal is not None:
        books.refuse_reserved(request, refusal)
        return
    limit = checks.output_limit(books, request, len(prompt))
    given = request.sampling.max_tokens
    tenant = books.tenants.named(request.key.tenant)
    reservation = tenant.reservation(len(prompt), request.n, given, limit)
    expected = (reservation - len(prompt)) // request.n
    refusal = tenant.affords(reservation, now_ns) or start_forecast.too_late(
        books, request, len(prompt), expected, now_ns
    )
    refusal = refusal or checks.no_room(
        books, request.traffic_class, 0, len(prompt) * request.n, now_ns, shed=not request.preview
    )
    if refusal is not None:
        books.refuse_reserved(request, refusal)
    elif request.preview:
        _foretell(books, request, len(prompt), expected)
    else:
        tenant.charge(reservation, now_ns)
        request.reserved_tokens = reservation
        _enter(books, request, prompt, given if given is not None else limit, now_ns)


def _begin(
    books: AdmissionState,
    client: ClientSession,
    arrival: ClientMessage,
    body: Generate,
    key: RequestKey,
    traffic_class: str,
    *,
    preview: bool = False,
) -> Request:
    request = _reserve(books, client, arrival, body, key, traffic_class, preview=preview)
    if body.token_ids is not None:
        accept(books, request, body.token_ids, arrival.now_ns)
    else:
        owner = f"{key.tenant} {traffic_class} {client.id}"
        within = arrival.within or arrival.traceparent
        job = TokenizeJob(request.number, owner, request.characters, body.prompt, body.messages, within)
        books.tokenizer.submit(job)
    return request


def _reserve(
    books: AdmissionState,
    client: ClientSession,
    arrival: ClientMessage,
    body: Generate,
    key: RequestKey,
    traffic_class: str,
    *,
    preview: bool,
) -> Request:
    seed = arrival.seed if body.sampling.seed is None else body.sampling.seed
    rule = books.class_rule(traffic_class)
    ttl_first_ms = rule.ttl_first_ms if body.ttl_first_ms is None else body.ttl_first_ms
    ttl_ms = rule.ttl_ms if body.ttl_ms is None else body.ttl_ms
    request = Request(
        number=books.ledger.draw_number(),
        key=key,
        client=client.id,
        digest=arrival.digest,
        model=body.model or books.rules.models[0],
        sampling=body.sampling,
        n=body.n,
        seed=effective_seed(seed),
        traceparent=arrival.traceparent,
        traffic_class=traffic_class,
        received_ns=arrival.now_ns,
        deadline_first_ns=_deadline(arrival.now_ns, ttl_first_ms),
        deadline_ns=_deadline(arrival.now_ns, ttl_ms),
        characters=characters(body),
        preview=preview,
        keep=body.keep,
        background=body.background,
        grace_ns=books.rules.client_timeout_ns if body.grace_ms is None else body.grace_ms * 1_000_000,
    )
    books.ledger.reserve(request)
    books.delivery.attach(client, request)
    books.credit.reserve(request.claims, traffic_class)
    books.tenants.named(key.tenant).streams += request.claims
    books.tokenizer.reserve(request)
    return request


def _enter(books: AdmissionState, request: Request, prompt: tuple[int, ...], max_tokens: int, now_ns: int) -> None:
    """Accept: nothing is in the way any more."""
    request.end_ids = end_ids(request.sampling, books.rules.eos_ids)
    choices = [
        ChoiceState(
            Stream(request.number, index),
            settle(request.sampling, choice_seed(request.seed, index), max_tokens, books.rules.vocabulary),
        )
        for index in range(request.n)
    ]
    books.accept(request, prompt, choices, now_ns)
    books.notes.append(
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


def _foretell(books: AdmissionState, request: Request, prompt_tokens: int, expected: int) -> None:
    attachment = books.delivery.attachments.get(request.number)
    books.leave_tokenizing(request)
    books.forget(request)
    name = request.key.id.removeprefix(PREVIEW)
    answer = start_forecast.forecast(books, request, name, prompt_tokens, expected)
    books.foretell(attachment.client if attachment is not None else None, answer)


def _problem(books: AdmissionState, rule: TenantRule, body: Generate, now_ns: int) -> Refusal | None:
    """Everything that can be said against a request before its prompt is tokenized."""
    traffic_class = body.traffic_class or rule.default_class
    return (
        checks.class_denied(books, rule, traffic_class)
        or problem(body, books.rules)
        or checks.beyond_limits(books.class_rule(traffic_class), rule, body)
        or checks.unready(books)
        or checks.unable(books, books.tenants.get(rule, now_ns), traffic_class, body, now_ns)
    )


def _came_to_nothing(known: Request, body: Generate) -> bool:
    """Whether a request under an idempotency key is over without its answer, so that a repetition tries again."""
    return body.keep and known.stage is RequestStage.ENDED and not all(choice.end in _WHOLE for choice in known.choices)


def _is_told(books: AdmissionState, client: ClientSession, known: Request) -> bool:
    """Whether a client is still owed the end, so that it asks for this answer and not for another."""
    attachment = books.delivery.attachments.get(known.number)
    return attachment is not None and attachment.client is client


def _deadline(now_ns: int, ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else now_ns + ttl_ms * 1_000_000


def _conflict() -> Refusal:
    return Refusal(
        Code.CONFLICT,
        "another request with this id is alive or was a moment ago; draw a new id for a new request",
        "id",
    )
