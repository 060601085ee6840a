"""Checks that refuse well-formed requests: readiness, classes and tenants, length, quota, room in the queue.

Each check returns a refusal or None. Only `no_room` changes anything: it sheds requests of lower classes where that makes
room. Everything else is refused before anything is allocated.
"""

from typing import Final

from noria.proto.frontdoor import Code, Generate
from noria.services.admission.core.intake.validation import characters
from noria.services.admission.core.ledger.request import Request
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.tenants.refusal import Refusal
from noria.services.admission.core.tenants.tenant_policy import ClassRule, TenantRule
from noria.services.admission.core.tenants.tenant_state import TenantState

NOT_READY_RETRY_MS: Final = 500
_DRAINING_RETRY_MS: Final = 30_000
_CHARACTERS_PER_TOKEN: Final = 4
# What isolated classes may have beyond the bounds that all share.
_ISOLATED_REQUESTS: Final = 64
_ISOLATED_CHARACTERS: Final = 1024 * 1024


def unauthorized(credential: str) -> Refusal:
    """The refusal of a credential that is nobody's; it is not repeated."""
    reason = "this API key is not known here" if credential else "an API key is needed here and none was given"
    return Refusal(Code.UNAUTHORIZED, reason, "credential")


def unknown() -> Refusal:
    """The refusal of a question about a request that is not known, or not the asker's."""
    reason = "there is no such request: it was never accepted, or it ended and was forgotten; send it again"
    return Refusal(Code.NOT_FOUND, reason, "id")


def not_ready(state: AdmissionState) -> Refusal | None:
    """Refuse every request while draining, while the journal cannot be written, and until all services are ready."""
    if state.drain_ns is not None:
        return Refusal(
            Code.NOT_READY, "the server is shutting down; try again elsewhere or later", "", _DRAINING_RETRY_MS
        )
    if state.unsaved.stuck:
        reason = "what is accepted cannot be written down just now, perhaps because the disk is full; try again later"
        return Refusal(Code.OVERLOADED, reason, "", NOT_READY_RETRY_MS)
    waiting = state.waiting_for()
    if not waiting:
        return None
    return Refusal(Code.NOT_READY, f"not ready: waiting for {', '.join(waiting)}; try again", "", NOT_READY_RETRY_MS)


def class_denied(state: AdmissionState, rule: TenantRule, traffic_class: str) -> Refusal | None:
    """Refuse a class that does not exist, or that the tenant may not use."""
    allowed = [name for name in rule.classes if name in state.policy.classes]
    if traffic_class in allowed:
        return None
    what = "may not be used with this API key" if traffic_class in state.policy.classes else "does not exist"
    return Refusal(
        Code.INVALID, f"the class {traffic_class[:64]!r} {what}; use one of {', '.join(allowed)}", "traffic_class"
    )


def beyond_limits(class_rule: ClassRule, rule: TenantRule, body: Generate) -> Refusal | None:
    """Refuse a request for more choices or output tokens than its class or tenant may have."""
    if rule.n_max is not None and body.n > rule.n_max:
        return Refusal(Code.INVALID, f"n must be at most {rule.n_max} for this API key, not {body.n}", "n")
    wanted = body.sampling.max_tokens
    most, whose = _lesser((class_rule.output_tokens_max, f"in class {class_rule.name}"), (rule.output_tokens_max, _KEY))
    if most is not None and wanted is not None and wanted > most:
        return Refusal(Code.INVALID, f"max_tokens must be at most {most} {whose}, not {wanted}", "max_tokens")
    return None


def over_limits(
    state: AdmissionState, tenant: TenantState, traffic_class: str, body: Generate, now_ns: int
) -> Refusal | None:
    """Refuse at once what could not be accepted even if it were tokenized."""
    limits, isolated = state.limits, state.class_rule(traffic_class).isolated
    text = characters(body)
    likely = text // _CHARACTERS_PER_TOKEN + len(body.token_ids or ())
    busy = tenant.busy(body.n, likely, now_ns)
    if busy is not None:
        return busy
    if state.held() >= limits.requests_max + isolated * _ISOLATED_REQUESTS:
        return overloaded(state, f"{limits.requests_max} requests are unfinished already", traffic_class)
    if state.tokenizer.characters + text > limits.tokenizing_characters_max + isolated * _ISOLATED_CHARACTERS:
        return overloaded(state, "too much text waits to be tokenized", traffic_class)
    return no_room(state, traffic_class, body.n, 0, now_ns, shed=False)


def no_room(
    state: AdmissionState, traffic_class: str, streams: int, tokens: int, now_ns: int, *, shed: bool
) -> Refusal | None:
    """Refuse what the queue has no room for. `shed`: make room by dropping what lower classes have waiting."""
    rule = state.class_rule(traffic_class)
    if state.waiting.full(rule, streams, tokens):
        return overloaded(state, f"the queue of class {traffic_class} is full", traffic_class)
    if rule.isolated and rule.queue_requests_max is not None:
        return None  # its own bound is all that counts: it answers even when everything else is full
    missing = state.credit.shortfall(streams, tokens, traffic_class)
    if missing is None:
        return None
    victims = state.waiting.victims(state.policy, rule.rank, missing)
    if not victims:
        return overloaded(state, "the queue is full", traffic_class)
    if shed:
        state.shed(victims, now_ns)
    return None


def overloaded(state: AdmissionState, reason: str, traffic_class: str) -> Refusal:
    """The refusal of more work than can be taken now."""
    return Refusal(Code.OVERLOADED, f"{reason}; try again later", "", state.credit.retry_after_ms(traffic_class))


def invalid_prompt(prompt: tuple[int, ...], vocabulary: int) -> Refusal | None:
    """Refuse a prompt that no model can continue."""
    if not prompt:
        return Refusal(Code.INVALID, "the prompt has no tokens; give some text", "prompt")
    if max(prompt) >= vocabulary:
        return Refusal(Code.INVALID, f"the prompt has token {max(prompt)}, which this model does not know", "prompt")
    return None


def output_limit(state: AdmissionState, request: Request, prompt_tokens: int) -> int:
    """The longest answer that a request may have where it names no length."""
    rule = state.tenants.named(request.key.tenant).rule
    most, _ = _lesser((state.class_rule(request.traffic_class).output_tokens_max, ""), (rule.output_tokens_max, ""))
    left = _context(state) - prompt_tokens
    return left if most is None else min(left, most)


def too_long(state: AdmissionState, request: Request, prompt_tokens: int) -> Refusal | None:
    """Refuse what exceeds the context, the class or the tenant."""
    context = _context(state)
    if prompt_tokens + 1 > context:
        return Refusal(
            Code.CONTEXT_LENGTH,
            f"the prompt has {prompt_tokens} tokens; with at least one of output, at most {context} fit; shorten it",
            "prompt",
        )
    class_rule, rule = state.class_rule(request.traffic_class), state.tenants.named(request.key.tenant).rule
    most, whose = _lesser((class_rule.prompt_tokens_max, f"in class {class_rule.name}"), (rule.prompt_tokens_max, _KEY))
    if most is not None and prompt_tokens > most:
        reason = f"the prompt has {prompt_tokens} tokens; at most {most} are allowed {whose}; shorten it"
        return Refusal(Code.CONTEXT_LENGTH, reason, "prompt")
    given = request.sampling
    if given.max_tokens is not None and prompt_tokens + given.max_tokens > context:
        return Refusal(
            Code.CONTEXT_LENGTH,
            f"{prompt_tokens} prompt tokens and max_tokens {given.max_tokens} together exceed the context of "
            f"{context}; lower max_tokens to {context - prompt_tokens} or shorten the prompt",
            "max_tokens",
        )
    if given.min_tokens > (room := output_limit(state, request, prompt_tokens)):
        return Refusal(
            Code.CONTEXT_LENGTH,
            f"min_tokens {given.min_tokens} exceeds the {room} tokens that fit after the prompt",
            "min_tokens",
        )
    return None


_KEY: Final = "for this API key"


def _context(state: AdmissionState) -> int:
    return min(state.limits.context_tokens, state.credit.largest_tokens)


def _lesser(*limits: tuple[int | None, str]) -> tuple[int | None, str]:
    """The lowest of the given limits and whose it is; (None, "") if there is no limit."""
    given = [(limit, whose) for limit, whose in limits if limit is not None]
    return min(given, default=(None, ""), key=lambda each: each[0])
