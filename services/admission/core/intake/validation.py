"""Which requests are well formed: every range, count and combination that types alone do not check.

Decides from the request and the limits alone, before a token is made or a byte allocated. Knows nothing of load, nor of
the prompt's length in tokens.
"""

import re
from collections.abc import Callable
from typing import Final

from noria.proto.frontdoor import REQUEST_ID_CHARACTERS_MAX, Code, Generate
from noria.proto.sampling import parameters
from noria.services.admission.core.tenants.admission_limits import AdmissionLimits
from noria.services.admission.core.tenants.refusal import Refusal

TTL_MS_MAX: Final = 2**31
GRACE_MS_MAX: Final = 86_400_000
LOGIT_BIAS_IDS_MAX: Final = 300
CHARACTERS_PER_TOKEN_MAX: Final = 64
STOP_STRING_CHARACTERS_MAX: Final = 256
STOP_TOKEN_IDS_MAX: Final = 64
_ID: Final = re.compile(r"[\x21-\x7e]+")
_ROLE: Final = re.compile(r"[a-z_]{1,32}")


def id_problem(request_id: str) -> Refusal | None:
    """Check a request id, by which everything else is answered."""
    if not 1 <= len(request_id) <= REQUEST_ID_CHARACTERS_MAX or _ID.fullmatch(request_id) is None:
        return _invalid(
            "id",
            f"a request id has 1 to {REQUEST_ID_CHARACTERS_MAX} printable ASCII characters and no spaces; use a UUID",
        )
    return None


def problem(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    """Return the first thing wrong with a request, or None. Its id has been checked by `id_problem`."""
    for check in _CHECKS:
        found = check(body, limits)
        if found is not None:
            return found
    return None


def characters(body: Generate) -> int:
    """How much text has to be tokenized, in characters; each message counts a little more than its text."""
    if body.messages is not None:
        return sum(len(each.role) + len(each.content) + 8 for each in body.messages)
    return len(body.prompt or "")


def _invalid(parameter: str, reason: str) -> Refusal:
    return Refusal(Code.INVALID, reason, parameter)


def _between(parameter: str, value: float, low: float, high: float, advice: str) -> Refusal | None:
    # A comparison with NaN is false, so that NaN and the infinities fail here too.
    if low <= value <= high:
        return None
    return _invalid(parameter, f"{parameter} must be between {low:g} and {high:g}, not {value:g}; {advice}")


def _model(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    if not body.model or body.model in limits.models:
        return None
    return Refusal(
        Code.MODEL_NOT_FOUND,
        f"there is no model {body.model[:128]!r}; served here: {', '.join(limits.models)}",
        "model",
    )


def _input(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    given = [
        name
        for name, value in (("prompt", body.prompt), ("messages", body.messages), ("token_ids", body.token_ids))
        if value is not None
    ]
    if len(given) != 1:
        what = f"{' and '.join(given)} were given" if given else "none was given"
        return _invalid(given[1] if given else "prompt", f"give exactly one of prompt, messages and token_ids; {what}")
    if body.prompt is not None and not body.prompt:
        return _invalid("prompt", "the prompt is empty; give at least one character")
    if body.messages is not None:
        return _messages(body, limits)
    if body.token_ids is not None:
        return _token_ids(body.token_ids, limits)
    return None


def _messages(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    messages = body.messages
    assert messages is not None
    if not limits.has_chat_template:
        return Refusal(
            Code.UNSUPPORTED, "this model has no chat template; give a prompt instead of messages", "messages"
        )
    if not 1 <= len(messages) <= limits.messages_max:
        return _invalid("messages", f"a chat has 1 to {limits.messages_max} messages, not {len(messages)}")
    for position, message in enumerate(messages):
        if _ROLE.fullmatch(message.role) is None:
            return _invalid(
                f"messages.{position}.role",
                f"{message.role[:32]!r} is not a role; use system, user, assistant or one that the template knows",
            )
    return None


def _token_ids(ids: tuple[int, ...], limits: AdmissionLimits) -> Refusal | None:
    if not ids:
        return _invalid("token_ids", "token_ids is empty; give at least one id")
    if len(ids) >= limits.context_tokens:
        return Refusal(
            Code.CONTEXT_LENGTH,
            f"{len(ids)} prompt tokens leave no room for output in a context of {limits.context_tokens}; shorten them",
            "token_ids",
        )
    return _vocabulary("token_ids", ids, limits)


def _vocabulary(parameter: str, ids: tuple[int, ...], limits: AdmissionLimits) -> Refusal | None:
    if not ids or (min(ids) >= 0 and max(ids) < limits.vocabulary):
        return None
    wrong = next(each for each in ids if not 0 <= each < limits.vocabulary)
    return _invalid(parameter, f"{wrong} is not a token id of this model; ids go from 0 to {limits.vocabulary - 1}")


def _length(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    # No vocabulary averages 64 characters a token over a whole prompt, so so long a text cannot fit, and tokenizing
    # megabytes only to learn that would keep the tokenizer from everyone else.
    if characters(body) <= limits.context_tokens * CHARACTERS_PER_TOKEN_MAX:
        return None
    return Refusal(
        Code.CONTEXT_LENGTH,
        f"{characters(body)} characters cannot fit into a context of {limits.context_tokens} tokens; shorten the input",
        "messages" if body.messages is not None else "prompt",
    )


def _choices(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    return _between("n", body.n, 1, limits.n_max, "send several requests for more choices")


def _ranges(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    """Every number within the range that the parameter's definition gives it."""
    del limits
    for name, parameter in parameters().items():
        value = getattr(body.sampling, name)
        if parameter.bounds is None or value is None or not parameter.scalar:
            continue
        if reason := parameter.bounds.problem(name, value):
            return _invalid(name, reason)
    return None


def _ends(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    sampling = body.sampling
    highest = limits.context_tokens if sampling.max_tokens is None else sampling.max_tokens
    if not 0 <= sampling.min_tokens <= highest:
        return _invalid("min_tokens", f"min_tokens must be between 0 and max_tokens, not {sampling.min_tokens}")
    if len(sampling.stop) > limits.stop_strings_max:
        return _invalid("stop", f"at most {limits.stop_strings_max} stop strings, not {len(sampling.stop)}")
    if not all(1 <= len(each) <= STOP_STRING_CHARACTERS_MAX for each in sampling.stop):
        return _invalid("stop", f"a stop string has 1 to {STOP_STRING_CHARACTERS_MAX} characters")
    if len(sampling.stop_token_ids) > STOP_TOKEN_IDS_MAX:
        return _invalid(
            "stop_token_ids", f"at most {STOP_TOKEN_IDS_MAX} stop token ids, not {len(sampling.stop_token_ids)}"
        )
    return _vocabulary("stop_token_ids", sampling.stop_token_ids, limits)


def _logit_bias(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    bias, bounds = body.sampling.logit_bias, parameters()["logit_bias"].bounds
    assert bounds is not None
    if len(bias) > LOGIT_BIAS_IDS_MAX:
        return _invalid("logit_bias", f"at most {LOGIT_BIAS_IDS_MAX} ids, not {len(bias)}")
    if len({token for token, _ in bias}) < len(bias):
        return _invalid("logit_bias", "a token id has two biases; give one")
    for _, value in bias:
        if reason := bounds.problem("a bias", value):
            return _invalid("logit_bias", reason)
    return _vocabulary("logit_bias", tuple(token for token, _ in bias), limits)


def _reserved(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    del limits
    if not body.sampling.reserved_1:
        return None
    return Refusal(Code.UNSUPPORTED, "grammar is not supported yet; leave it out", "grammar")


def _time(body: Generate, limits: AdmissionLimits) -> Refusal | None:
    del limits
    for parameter, value in (("ttl_first_ms", body.ttl_first_ms), ("ttl_ms", body.ttl_ms)):
        if value is not None and not 1 <= value <= TTL_MS_MAX:
            return _invalid(parameter, f"{parameter} must be between 1 and {TTL_MS_MAX} milliseconds, not {value}")
    if body.grace_ms is not None and not 0 <= body.grace_ms <= GRACE_MS_MAX:
        return _invalid("grace_ms", f"grace_ms must be between 0 and {GRACE_MS_MAX} milliseconds, not {body.grace_ms}")
    return None


_CHECKS: Final[tuple[Callable[[Generate, AdmissionLimits], Refusal | None], ...]] = (
    _model,
    _input,
    _length,
    _choices,
    _ranges,
    _ends,
    _logit_bias,
    _reserved,
    _time,
)
