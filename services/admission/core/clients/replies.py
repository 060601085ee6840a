"""Builds the messages to clients from requests and choices of the ledger."""

from noria.proto.frontdoor import Accepted, Delta, Finished, Standing, Timings
from noria.services.admission.core.clients.client_session import DeliveryCursor
from noria.services.admission.core.ledger.request import ChoiceRecord, Request


def delta(request: Request, choice: ChoiceRecord, cursor: DeliveryCursor, ids_max: int) -> Delta | None:
    """What a cursor lacks, at most `ids_max` tokens of it, fewer with log-probabilities; None when that is nothing.

    Text goes with the last of the ids, so that a client never has text without its tokens.
    """
    ids_max = max(1, ids_max // tokens_in_message(choice))
    ids = choice.ids[cursor.ids : cursor.ids + ids_max]
    whole = cursor.ids + len(ids) == len(choice.ids)
    text = choice.text.since(cursor.characters) if whole else ""
    if not ids and not text and cursor.attempt == choice.attempt:
        return None
    logprobs = tuple(choice.logprobs[cursor.ids : cursor.ids + len(ids)])
    return Delta(
        request.key.id, choice.stream.choice, choice.attempt, cursor.ids, tuple(ids), cursor.characters, text, logprobs
    )


def tokens_in_message(choice: ChoiceRecord) -> int:
    """How many plain tokens one token of a choice counts for in the size of a message; more with log-probabilities."""
    alternatives = choice.sampling.logprobs
    return 1 if alternatives is None else 4 * (alternatives + 2)


def accepted(request: Request, client_timeout_ns: int) -> Accepted:
    """The answer that opens a request's streams."""
    return Accepted(
        id=request.key.id,
        request=request.number,
        prompt_tokens=request.prompt_tokens,
        model=request.model,
        seed=request.seed,
        peer_timeout_ms=client_timeout_ns // 1_000_000,
    )


def finished(request: Request, choice: ChoiceRecord) -> Finished:
    """The end of one choice, with usage and timings."""
    assert choice.end is not None
    first_ns = choice.first_token_ns
    return Finished(
        id=request.key.id,
        index=choice.stream.choice,
        end=choice.end,
        prompt_tokens=request.prompt_tokens,
        output_tokens=len(choice.ids),
        matched=choice.matched,
        detail=choice.detail,
        timings=Timings(
            queue_ms=choice.queue_us / 1e3,
            first_token_ms=0.0 if first_ns is None else (first_ns - request.accepted_ns) / 1e6,
            total_ms=(choice.ended_ns - request.accepted_ns) / 1e6,
        ),
        cached_tokens=choice.cached_tokens,
    )


def standing(question: str, request: Request, now_ns: int) -> Standing:
    """The answer to a question about a request: its age, and the tokens and end of each choice."""
    choices = request.choices
    return Standing(
        id=question,
        request=request.key.id,
        background=request.background,
        age_ms=(now_ns - request.received_ns) // 1_000_000,
        model=request.model,
        prompt_tokens=request.prompt_tokens,
        output_tokens=tuple(len(each.ids) for each in choices) or (0,) * request.n,
        ends=tuple(each.end or 0 for each in choices) or (0,) * request.n,
        stop=request.sampling.stop,
    )
