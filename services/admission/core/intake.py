"""From a `Generate` to a place in the ledger, or a refusal that says why.

The key is reserved on receipt, before anything is tokenized, so that a request sent twice is one request. Credit is
reserved with it. What the scheduler would later have to refuse is refused here.
"""

from typing import Final

from noria.proto.base import Stream
from noria.proto.frontdoor import Code, Generate, Have
from noria.services.admission.core.books import Books
from noria.services.admission.core.clients import Client
from noria.services.admission.core.events import AcceptedNote, Arrival, AttachedNote, Job, Tokenized
from noria.services.admission.core.ledger import Choice, Key, Request, Stage
from noria.services.admission.core.sampling import choice_seed, effective_seed, end_ids, settle
from noria.services.admission.core.validation import Refusal, characters, id_problem, problem

NOT_READY_RETRY_MS: Final = 1_000
TENANT: Final = ""  # everyone, until credentials name tenants


def generate(books: Books, client: Client, arrival: Arrival, body: Generate) -> Request | None:
    """Take a `Generate`; returns the request that it reserved, if it did."""
    unnameable = id_problem(body.id, books.rules)
    if unnameable is not None:
        books.refuse(client, client.id, body.id[: books.rules.request_id_characters_max], unnameable)
        return None
    known = books.ledger.keys.get(Key(TENANT, body.id))
    if known is not None:
        if known.digest != arrival.digest:
            books.refuse(client, client.id, body.id, _conflict())
        else:
            attach(books, client, known)
        return None
    refusal = problem(body, books.rules) or _unable(books, body)
    if refusal is not None:
        books.refuse(client, client.id, body.id, refusal)
        return None
    request = _reserve(books, client, arrival, body)
    if body.token_ids is not None:
        accept(books, request, body.token_ids, arrival.now_ns)
    else:
        books.jobs[request.number] = Job(
            request.number, client.id, request.characters, body.prompt, body.messages, arrival.traceparent
        )
    return request


def attach(books: Books, client: Client, request: Request, have: tuple[Have, ...] = ()) -> None:
    """A client takes over the streams of a request; it gets everything that it does not have."""
    books.delivery.attach(client, request, have)
    books.orphans.pop(request.number, None)
    awaited = request.stage is Stage.TOKENIZING and request.client == client.id
    books.notes.append(AttachedNote(client.id, request.key.id, request.number, awaited))


def tokenized(books: Books, event: Tokenized) -> None:
    """Take the tokenizer's result; one for a request that has gone meanwhile is dropped."""
    request = books.ledger.tokenizing.get(event.number)
    if request is None:
        return
    books.working.discard(event.number)
    if event.problem:
        books.refuse_reserved(request, Refusal(event.code, event.problem, event.parameter))
        return
    accept(books, request, event.ids, event.now_ns)


def accept(books: Books, request: Request, prompt: tuple[int, ...], now_ns: int) -> None:
    """Accept a reserved request with its prompt, or refuse it."""
    context = min(books.rules.context_tokens, books.credit.largest_tokens)
    refusal = (
        _unready(books)
        or _unusable(prompt, books.rules.vocabulary)
        or _too_long(request, len(prompt), context)
        or _no_credit(books, request, len(prompt))
    )
    if refusal is not None:
        books.refuse_reserved(request, refusal)
        return
    given = request.sampling
    max_tokens = given.max_tokens if given.max_tokens is not None else context - len(prompt)
    request.end_ids = end_ids(given, books.rules.eos_ids)
    choices = [
        Choice(
            Stream(request.number, index),
            settle(given, choice_seed(request.seed, index), max_tokens, books.rules.vocabulary),
        )
        for index in range(request.n)
    ]
    books.accept(request, prompt, choices, now_ns)
    books.notes.append(AcceptedNote(request.client, request.key.id, request.number, len(prompt), request.n))


def _reserve(books: Books, client: Client, arrival: Arrival, body: Generate) -> Request:
    seed = arrival.seed if body.sampling.seed is None else body.sampling.seed
    request = Request(
        number=books.ledger.draw_number(),
        key=Key(TENANT, body.id),
        client=client.id,
        digest=arrival.digest,
        model=body.model or books.rules.models[0],
        sampling=body.sampling,
        n=body.n,
        seed=effective_seed(seed),
        traceparent=arrival.traceparent,
        traffic_class=body.traffic_class,
        received_ns=arrival.now_ns,
        deadline_first_ns=_deadline(arrival.now_ns, body.ttl_first_ms),
        deadline_ns=_deadline(arrival.now_ns, body.ttl_ms),
        characters=characters(body),
    )
    books.ledger.reserve(request)
    books.delivery.attach(client, request)
    books.credit.reserved += request.n
    books.tokenizing_characters += request.characters
    return request


def _deadline(now_ns: int, ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else now_ns + ttl_ms * 1_000_000


def _conflict() -> Refusal:
    return Refusal(
        Code.CONFLICT,
        "another request with this id is alive or was a moment ago; draw a new id for a new request",
        "id",
    )


def _unready(books: Books) -> Refusal | None:
    if books.drain_ns is not None:
        return Refusal(
            Code.NOT_READY, "the server is shutting down; try again elsewhere or later", "", NOT_READY_RETRY_MS
        )
    waiting = books.waiting_for()
    if not waiting:
        return None
    return Refusal(Code.NOT_READY, f"not ready: waiting for {', '.join(waiting)}; try again", "", NOT_READY_RETRY_MS)


def _unable(books: Books, body: Generate) -> Refusal | None:
    """Refuse at once what could not be accepted even if it were tokenized."""
    unready = _unready(books)
    if unready is not None:
        return unready
    rules = books.rules
    if books.held() >= rules.requests_max:
        return _overloaded(books, f"{rules.requests_max} requests are unfinished already", body.traffic_class)
    if not books.credit.allows_requests(body.n, body.traffic_class):
        return _overloaded(books, "the queue is full", body.traffic_class)
    if books.tokenizing_characters + characters(body) > rules.tokenizing_characters_max:
        return _overloaded(books, "too much text waits to be tokenized", body.traffic_class)
    return None


def _overloaded(books: Books, reason: str, traffic_class: str) -> Refusal:
    return Refusal(Code.OVERLOADED, f"{reason}; try again later", "", books.credit.retry_after_ms(traffic_class))


def _unusable(prompt: tuple[int, ...], vocabulary: int) -> Refusal | None:
    if not prompt:
        return Refusal(Code.INVALID, "the prompt has no tokens; give some text", "prompt")
    if max(prompt) >= vocabulary:
        return Refusal(Code.INVALID, f"the prompt has token {max(prompt)}, which this model does not know", "prompt")
    return None


def _too_long(request: Request, prompt_tokens: int, context: int) -> Refusal | None:
    if prompt_tokens + 1 > context:
        return Refusal(
            Code.CONTEXT_LENGTH,
            f"the prompt has {prompt_tokens} tokens; with at least one of output, at most {context} fit; shorten it",
            "prompt",
        )
    given = request.sampling
    if given.max_tokens is not None and prompt_tokens + given.max_tokens > context:
        return Refusal(
            Code.CONTEXT_LENGTH,
            f"{prompt_tokens} prompt tokens and max_tokens {given.max_tokens} together exceed the context of "
            f"{context}; lower max_tokens to {context - prompt_tokens} or shorten the prompt",
            "max_tokens",
        )
    if given.min_tokens > context - prompt_tokens:
        return Refusal(
            Code.CONTEXT_LENGTH,
            f"min_tokens {given.min_tokens} exceeds the {context - prompt_tokens} tokens that fit after the prompt",
            "min_tokens",
        )
    return None


def _no_credit(books: Books, request: Request, prompt_tokens: int) -> Refusal | None:
    # The request's own reservation is part of what `allows_requests` counts, so nothing more is asked for.
    within = books.credit.allows_requests(0, request.traffic_class) and books.credit.allows_tokens(
        prompt_tokens * request.n, request.traffic_class
    )
    return None if within else _overloaded(books, "the queue is full", request.traffic_class)
