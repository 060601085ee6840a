"""How many query tokens the next step may have, so that running requests keep their inter-token latency.

With steps one after another on the lane, a running request's next token is as far away as its step is long. So the step
is filled with prefill tokens only up to the target time, as the step-time model predicts it. Knows numbers only.
"""

from typing import Final

from noria.proto.scheduling import StepTime

# Prefill always goes on: a target that cannot be kept even by decodes alone must not stop everybody else for good.
PREFILL_TOKENS_MIN: Final = 16
# Steps scatter around their prediction; aiming a tenth below the target keeps most of them within it.
_AIM: Final = 0.9


def step_tokens(
    fit: StepTime, target_ms: float | None, *, decodes: int, cache_tokens: int, tokens_max: int, floor: int = 0
) -> int:
    """The query-token budget of the next step, decodes included.

    fit: the step-time model; without a cost per query token there is nothing to adapt.
    target_ms: the least inter-token latency asked for by a running request that it can matter to, None for none.
    decodes, cache_tokens: the running sequences that continue in the step, and the cached tokens that they read.
    tokens_max: the budget without a target, never exceeded. floor: prefill tokens to allow in any case, at least
    PREFILL_TOKENS_MIN.
    """
    least = min(tokens_max, decodes + max(floor, PREFILL_TOKENS_MIN))
    if target_ms is None or fit.query_token_us <= 0:
        return tokens_max
    fixed_us = fit.base_us + fit.cache_token_us * cache_tokens + fit.request_us * (decodes + 1)
    allowed = int((target_ms * 1000 * _AIM - fixed_us) / fit.query_token_us)
    return max(least, min(allowed, tokens_max))
