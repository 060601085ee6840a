"""What a step may hold under an inter-token latency target."""

import pytest

from noria.proto.scheduling import StepTime
from noria.services.scheduler.core.predict.prefill_budget import (
    PREFILL_TOKENS_MIN,
    PrefillBudget,
    prefill_budget,
    step_tokens,
)
from noria.services.scheduler.core.predict.step_time_model import predict_us

FIT = StepTime(base_us=2000, query_token_us=100, cache_token_us=0.1, request_us=10, pair_us=0.02)


def tokens(target_ms: float, decodes: int = 8, cache_tokens: int = 4000, tokens_max: int = 512) -> int:
    within = prefill_budget(FIT, target_ms, decodes=decodes, cache_tokens=cache_tokens)
    return step_tokens(within, decodes=decodes, tokens_max=tokens_max)


def test_without_a_target_or_a_model_the_budget_is_the_configured_one() -> None:
    assert prefill_budget(FIT, None, decodes=8, cache_tokens=4000) is None
    assert prefill_budget(StepTime(), 20, decodes=8, cache_tokens=4000) is None
    assert step_tokens(None, decodes=8, tokens_max=512) == 512


@pytest.mark.parametrize("start", [0, 1000, 3500])
def test_a_step_filled_with_a_chunk_is_predicted_within_the_target_and_one_token_more_comes_close(start: int) -> None:
    within = prefill_budget(FIT, 30, decodes=8, cache_tokens=4000)
    assert within is not None
    count = within.tokens(start, new=True)
    pairs = count * (start + count / 2)
    spent_us = predict_us(FIT, 8 + count, 4008 + start + count, 9, pairs)
    assert 30_000 - 2 * (100 + 0.02 * start) < spent_us <= 30_000
    within.spend(start, count, new=True)
    assert within.tokens(0, new=True) <= 1


def test_steps_that_take_longer_than_foretold_are_made_shorter_by_as_much() -> None:
    usual, stretched = (prefill_budget(FIT, 30, decodes=8, cache_tokens=4000, stretch=each) for each in (1.0, 1.25))
    assert usual is not None and stretched is not None
    assert usual.left_us - stretched.left_us == pytest.approx(6000)


def test_the_end_of_a_long_prompt_is_computed_in_smaller_chunks_than_its_beginning() -> None:
    within = prefill_budget(FIT, 30, decodes=8, cache_tokens=4000)
    assert within is not None
    assert within.tokens(0, new=True) > 1.4 * within.tokens(3500, new=True)


def test_two_chunks_of_a_step_share_its_time() -> None:
    within = PrefillBudget(FIT, 10_000.0)
    within.spend(0, 60, new=True)
    left = within.tokens(60, new=False)
    assert 60 + left == pytest.approx(PrefillBudget(FIT, 10_000.0).tokens(0, new=True), abs=1)


def test_more_decodes_with_more_cache_leave_less_for_prefill() -> None:
    few = tokens(30, 4, 1000) - 4
    many = tokens(30, 60, 60_000) - 60
    assert few > many > PREFILL_TOKENS_MIN


def test_prompts_get_as_long_as_the_decodes_where_the_target_cannot_be_kept() -> None:
    decodes_us = predict_us(FIT, 60, 60_060, 60)
    count = tokens(1, 60, 60_000) - 60
    assert predict_us(FIT, count, count, 1) - FIT.base_us == pytest.approx(decodes_us, rel=0.02)


def test_prefill_goes_on_whatever_decodes_cost_and_is_never_above_the_configured_budget() -> None:
    slow = StepTime(query_token_us=1000)
    within = prefill_budget(slow, 1, decodes=2, cache_tokens=0)
    assert step_tokens(within, decodes=2, tokens_max=512) == 2 + PREFILL_TOKENS_MIN
    assert tokens(1, tokens_max=10) == 10
    assert tokens(10_000) == 512
