"""How much of prompts the next step may hold, so that running requests keep their inter-token latency.

With steps one after another on the executor, a running request's next token is as far away as its step is long. So the step is
filled with prefill tokens only up to the target time, as the step-time model predicts it. Knows numbers only.
"""

from dataclasses import dataclass
from typing import Final

from noria.proto.scheduling import StepTime

# Prefill always goes on: a target that cannot be kept even by decodes alone must not stop everybody else for good.
PREFILL_TOKENS_MIN: Final = 16
# A device that needs long for the decodes alone is given as long again for prompts, whatever the target.
_DECODES_MOST: Final = 0.5


@dataclass(slots=True, eq=False)
class PrefillBudget:
    """The time that the chunks of one step may take. left_us: what is left of it; least: tokens to allow in any case."""

    fit: StepTime
    left_us: float
    least: int = PREFILL_TOKENS_MIN

    def tokens(self, start: int, *, new: bool) -> int:
        """How many tokens of a prompt, from position `start` on, fit into what is left. new: not yet in this step."""
        fit = self.fit
        left_us = self.left_us - (self._entry_us(start) if new else 0.0)
        # Each further token looks at one position more: the root of a square equation.
        one_us = fit.query_token_us + fit.cache_token_us + fit.pair_us * start
        count = 0
        if left_us > 0:
            grows = fit.pair_us / 2
            count = int(2 * left_us / (one_us + (one_us * one_us + 4 * grows * left_us) ** 0.5))
        return max(count, self.least)

    def spend(self, start: int, tokens: int, *, new: bool) -> None:
        """Take the time of so many planned tokens of a prompt from the budget."""
        fit = self.fit
        read_us = fit.pair_us * tokens * (start + tokens / 2)
        self.left_us -= tokens * (fit.query_token_us + fit.cache_token_us) + read_us
        if new:
            self.left_us -= self._entry_us(start)
        self.least = max(0, self.least - tokens)

    def _entry_us(self, start: int) -> float:
        return self.fit.request_us + self.fit.cache_token_us * start


def prefill_budget(
    fit: StepTime, target_ms: float | None, *, decodes: int, cache_tokens: int, stretch: float = 1.0
) -> PrefillBudget | None:
    """The time that the chunks of a step may take; None where nothing bounds it.

    fit: the step-time model; without a cost per query token there is nothing to adapt.
    target_ms: the least inter-token latency asked for by a request that it can matter to, None for none.
    decodes, cache_tokens: the running sequences that continue in the step, and the cached tokens that they read.
    stretch: how many times its prediction nearly every step takes at most: these are to keep the target.
    """
    if target_ms is None or fit.query_token_us <= 0:
        return None
    decodes_us = (
        fit.base_us
        + fit.query_token_us * decodes
        + fit.cache_token_us * (cache_tokens + decodes)
        + fit.request_us * decodes
    )
    wanted_us = max(target_ms * 1000 / stretch, decodes_us / _DECODES_MOST)
    return PrefillBudget(fit, wanted_us - decodes_us)


def step_tokens(within: PrefillBudget | None, *, decodes: int, tokens_max: int) -> int:
    """The query-token budget of a step with so many decodes, theirs included: as if a prompt began with it."""
    if within is None:
        return tokens_max
    return min(tokens_max, decodes + within.tokens(0, new=True))
