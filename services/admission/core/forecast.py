"""When a request would start and end, and whether that is in time.

Predicts from the scheduler's last `Capacity`: the wait of the request's class and the step-time model. A request whose own
deadline cannot be met even so is refused at once, with the time after which it could be.
"""

import math
from typing import Final, NamedTuple

from noria.proto.frontdoor import Code, Forecast
from noria.services.admission.core.books import Books
from noria.services.admission.core.ledger import Request
from noria.services.admission.core.validation import Refusal

_PREFILL_STEP_TOKENS: Final = 512


class Course(NamedTuple):
    """The predicted course of a request, in milliseconds from now."""

    start_ms: float
    first_token_ms: float
    finish_ms: float


def course(books: Books, traffic_class: str, prompt_tokens: int, output_tokens: int) -> Course:
    """Predict when a request starts, has its first token, and ends after so many."""
    capacity = books.credit.capacity
    assert capacity is not None
    fit = capacity.step_time
    start_ms = books.credit.start_ms(traffic_class)
    steps = math.ceil(prompt_tokens / _PREFILL_STEP_TOKENS)
    prefill_us = steps * (fit.base_us + fit.request_us) + prompt_tokens * fit.query_token_us
    token_us = fit.base_us + fit.query_token_us + fit.request_us + prompt_tokens * fit.cache_token_us
    first_ms = start_ms + prefill_us / 1000
    return Course(start_ms, first_ms, first_ms + (output_tokens - 1) * token_us / 1000)


def too_late(books: Books, request: Request, prompt_tokens: int, output_tokens: int, now_ns: int) -> Refusal | None:
    """Refuse a request that is predicted to miss its deadline; for the end, by its least possible output."""
    if request.deadline_first_ns is None and request.deadline_ns is None:
        return None
    predicted = course(books, request.traffic_class, prompt_tokens, output_tokens)
    for deadline_ns, wanted_ms, name in (
        (request.deadline_first_ns, predicted.first_token_ms, "ttl_first_ms"),
        (request.deadline_ns, predicted.finish_ms, "ttl_ms"),
    ):
        if deadline_ns is None:
            continue
        late_ms = wanted_ms - (deadline_ns - now_ns) / 1e6
        if late_ms > 0:
            # Waiting helps only against the queue; what takes longer alone will never be in time.
            helps = late_ms <= predicted.start_ms
            reason = f"{name} cannot be kept: {wanted_ms:.0f} ms are predicted"
            return Refusal(Code.DEADLINE, reason, name, math.ceil(late_ms) if helps else None)
    return None


def forecast(books: Books, request: Request, name: str, prompt_tokens: int, output_tokens: int) -> Forecast:
    """What would become of a request that nothing speaks against."""
    predicted = course(books, request.traffic_class, prompt_tokens, output_tokens)
    return Forecast(
        name,
        admitted=True,
        traffic_class=request.traffic_class,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        start_ms=round(predicted.start_ms, 1),
        first_token_ms=round(predicted.first_token_ms, 1),
        finish_ms=round(predicted.finish_ms, 1),
    )
