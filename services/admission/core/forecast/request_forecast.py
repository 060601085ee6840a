"""Predicts start, first token and end of a request from the scheduler's last `Capacity`, and whether its deadlines are kept.

Pure arithmetic over what was published: the wait of the class, what is on the way before it, the pace of prefill and of
steps. A wait is judged with the margin by which such waits were exceeded lately, so that what is admitted keeps its
deadline; a request is refused only when it would miss it, and its refusal says when the queue will be short enough.
"""

import math
from typing import Final, NamedTuple

from noria.proto.scheduling import Capacity, ClassCapacity

_RETRY_MS_MIN: Final = 100
_ALL: Final = ""
# A plan is made up to a step ahead, so that a request begins after the step that runs when it arrives.
_STEPS_AHEAD: Final = 1.0


class QueueAhead(NamedTuple):
    """Accepted work before a request that the scheduler has not counted yet: streams, and prompt tokens."""

    requests: int = 0
    tokens: int = 0


class RequestForecast(NamedTuple):
    """Milliseconds from now to a request's first step, first token and end. late_ms: how much later each may be."""

    start_ms: float
    first_token_ms: float
    finish_ms: float
    late_ms: float


class DeadlineMiss(NamedTuple):
    """A deadline that would be missed: which, when its event would be, and after how long to try again.

    retry_after_ms: None where waiting doesn't help, because it would be missed on an idle server too.
    """

    name: str
    predicted_ms: float
    retry_after_ms: int | None


def predict(
    capacity: Capacity, traffic_class: str, ahead: QueueAhead, prompt_tokens: int, output_tokens: int
) -> RequestForecast:
    """Predict when a request starts, has its first token, and ends after `output_tokens`."""
    offered = _offer(capacity, traffic_class)
    queued_ms = 0.0
    margin = 1.0
    if offered is not None:
        queued_ms = offered.start_ms + ahead.requests * offered.request_ms + ahead.tokens * offered.token_ms
        margin = offered.margin
    start_ms = queued_ms + (_STEPS_AHEAD * capacity.step_ms if queued_ms or capacity.step_ms else 0.0)
    first_ms = start_ms + _prefill_ms(capacity, prompt_tokens)
    finish_ms = first_ms + max(0, output_tokens - 1) * max(capacity.step_ms, _alone_ms(capacity, prompt_tokens))
    return RequestForecast(start_ms, first_ms, finish_ms, queued_ms * (margin - 1.0))


def missed_deadline(forecast: RequestForecast, ttl_first_ms: float | None, ttl_ms: float | None) -> DeadlineMiss | None:
    """The deadline that would be missed, the later one first; None when both would be kept."""
    for name, ttl, predicted_ms in (
        ("ttl_ms", ttl_ms, forecast.finish_ms),
        ("ttl_first_ms", ttl_first_ms, forecast.first_token_ms),
    ):
        if ttl is None or predicted_ms + forecast.late_ms <= ttl:
            continue
        over_ms = predicted_ms + forecast.late_ms - ttl
        # Only the queue shrinks by waiting; what the request takes by itself stays.
        helps = over_ms < forecast.start_ms + forecast.late_ms
        return DeadlineMiss(name, predicted_ms, max(math.ceil(over_ms), _RETRY_MS_MIN) if helps else None)
    return None


def _offer(capacity: Capacity, traffic_class: str) -> ClassCapacity | None:
    """The capacity of a traffic class; for a class that the scheduler has not seen, the capacity that all share."""
    for each in capacity.classes:
        if each.traffic_class == traffic_class:
            return each
    return next((each for each in capacity.classes if each.traffic_class == _ALL), None)


def _prefill_ms(capacity: Capacity, prompt_tokens: int) -> float:
    """Predicted prefill time in milliseconds: a full step for each chunk of the prompt, a shorter one for the rest."""
    fit = capacity.step_time
    if not capacity.prefill_tokens:
        return (fit.base_us + fit.request_us + prompt_tokens * fit.query_token_us) / 1000
    full, rest = divmod(prompt_tokens, capacity.prefill_tokens)
    last_ms = capacity.prefill_step_ms - (capacity.prefill_tokens - rest) * fit.query_token_us / 1000
    return full * capacity.prefill_step_ms + (max(last_ms, 0.0) if rest else 0.0)


def _alone_ms(capacity: Capacity, prompt_tokens: int) -> float:
    """Predicted milliseconds of a decode step with this request alone, the least time between two tokens."""
    fit = capacity.step_time
    return (fit.base_us + fit.query_token_us + fit.request_us + prompt_tokens * fit.cache_token_us) / 1000
