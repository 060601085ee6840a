"""Turns the predicted start and end of a request into a refusal, or into the answer to a preview.

A request whose own deadline cannot be kept is refused at once, with the time after which it could be.
"""

from noria.proto.frontdoor import Code, Forecast
from noria.services.admission.core.forecast import request_forecast
from noria.services.admission.core.forecast.request_forecast import QueueAhead, RequestForecast
from noria.services.admission.core.ledger.request import Request
from noria.services.admission.core.state.admission_state import AdmissionState
from noria.services.admission.core.tenants.refusal import Refusal


def deadline_refusal(
    state: AdmissionState, request: Request, prompt_tokens: int, output_tokens: int, now_ns: int
) -> Refusal | None:
    """Refuse a request that is predicted to miss its deadline with as much output as is expected of it."""
    if request.deadline_first_ns is None and request.deadline_ns is None:
        return None
    miss = request_forecast.missed_deadline(
        _predict(state, request, prompt_tokens, output_tokens),
        _left_ms(request.deadline_first_ns, now_ns),
        _left_ms(request.deadline_ns, now_ns),
    )
    if miss is None:
        return None
    event = "the first token" if miss.name == "ttl_first_ms" else f"the end after about {output_tokens} tokens"
    reason = f"{miss.name} cannot be kept: {event} is predicted in {miss.predicted_ms:.0f} ms"
    advice = "try again later" if miss.retry_after_ms is not None else "waiting will not help; allow more time"
    return Refusal(Code.DEADLINE, f"{reason}; {advice}", miss.name, miss.retry_after_ms)


def forecast(state: AdmissionState, request: Request, name: str, prompt_tokens: int, output_tokens: int) -> Forecast:
    """The answer to a preview that would be accepted, with its predicted times in milliseconds."""
    predicted = _predict(state, request, prompt_tokens, output_tokens)
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


def _predict(state: AdmissionState, request: Request, prompt_tokens: int, output_tokens: int) -> RequestForecast:
    capacity = state.credit.capacity
    assert capacity is not None, "what is not ready has been refused"
    rank = state.class_rule(request.traffic_class).rank
    before = [name for name, rule in state.policy.classes.items() if rule.rank >= rank]
    waiting = [state.credit.uncounted(name) for name in before]
    ahead = QueueAhead(sum(each.requests for each in waiting), sum(each.tokens for each in waiting))
    return request_forecast.predict(capacity, request.traffic_class, ahead, prompt_tokens, output_tokens)


def _left_ms(deadline_ns: int | None, now_ns: int) -> float | None:
    return None if deadline_ns is None else (deadline_ns - now_ns) / 1e6
