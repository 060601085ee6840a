"""The query tokens that a step may have under an inter-token latency target."""

from noria.proto.scheduling import StepTime
from noria.services.scheduler.core.budget import PREFILL_TOKENS_MIN, step_tokens
from noria.services.scheduler.core.step_time import predict_us

FIT = StepTime(base_us=2000, query_token_us=100, cache_token_us=0.1, request_us=10)


def test_without_a_target_or_a_model_the_budget_is_the_configured_one() -> None:
    assert step_tokens(FIT, None, decodes=8, cache_tokens=4000, tokens_max=512) == 512
    assert step_tokens(StepTime(), 20, decodes=8, cache_tokens=4000, tokens_max=512) == 512


def test_a_step_of_the_budget_is_predicted_within_the_target_and_one_token_more_would_come_close() -> None:
    tokens = step_tokens(FIT, 30, decodes=8, cache_tokens=4000, tokens_max=512)
    assert 26_500 < predict_us(FIT, tokens, 4000, 9) <= 27_000
    assert tokens > 8 + PREFILL_TOKENS_MIN


def test_more_decodes_with_more_cache_leave_less_for_prefill() -> None:
    few = step_tokens(FIT, 30, decodes=4, cache_tokens=1000, tokens_max=512) - 4
    many = step_tokens(FIT, 30, decodes=60, cache_tokens=60_000, tokens_max=512) - 60
    assert few > many > PREFILL_TOKENS_MIN


def test_prefill_goes_on_even_when_the_target_cannot_be_kept() -> None:
    assert step_tokens(FIT, 1, decodes=8, cache_tokens=4000, tokens_max=512) == 8 + PREFILL_TOKENS_MIN
    assert step_tokens(FIT, 1, decodes=8, cache_tokens=4000, tokens_max=512, floor=64) == 72
    assert step_tokens(FIT, 1, decodes=8, cache_tokens=4000, tokens_max=10) == 10


def test_the_budget_is_never_above_the_configured_one() -> None:
    assert step_tokens(FIT, 10_000, decodes=8, cache_tokens=4000, tokens_max=512) == 512
