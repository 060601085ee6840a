"""The models of steps with prompts and of all steps, and how far steps exceed what is predicted."""

import random

import pytest

from noria.services.scheduler.core.predict.step_times import StepTimePredictor


def decoding_us(requests: int) -> int:
    """Waiting for weights hides what a sequence costs."""
    return 10_000 + 200 * requests


def beside_us(tokens: int, requests: int) -> int:
    """Computing hides the weights, and nothing else."""
    return 3000 + 1200 * tokens + 900 * requests


def learned(*, scatter: float = 0.0, prompts: int = 300) -> StepTimePredictor:
    draw, times = random.Random(1), StepTimePredictor()
    for step in range(900):
        requests = 1 + draw.randrange(12)
        chunk = 20 + draw.randrange(60) if step % 3 == 0 and step < 3 * prompts else 0
        right = beside_us(requests + chunk, requests) if chunk else decoding_us(requests)
        took = int(right * draw.lognormvariate(0.0, scatter))
        times.observe(requests + chunk, 100 * requests, requests, took, chunk * chunk // 2)
    return times


def test_steps_with_prompts_are_foretold_by_a_model_of_their_own() -> None:
    times = learned()
    for requests in (1, 6, 12):
        beside = times.predict_us(requests + 40, 100 * requests, requests, 800)
        assert beside == pytest.approx(beside_us(requests + 40, requests), rel=0.02)
    # One linear model of both kinds is farther off where many sequences continue beside a prompt.
    both = times.all.predict_us(52, 1200, 12, 800)
    assert both < 0.95 * beside_us(52, 12)


def test_before_enough_prompts_were_seen_all_steps_stand_in_for_them() -> None:
    times = learned(prompts=5)
    assert times.with_prompts() == times.all.coefficients()
    assert times.stretch == 1.0


def test_nine_in_ten_steps_with_prompts_stay_within_the_stretch() -> None:
    times, draw, within = learned(scatter=0.2), random.Random(2), 0
    for _ in range(2000):
        took = int(beside_us(50, 6) * draw.lognormvariate(0.0, 0.2))
        within += took <= times.stretch * times.predict_us(50, 600, 6, 800)
        times.observe(50, 600, 6, took, 800)
    assert 0.87 < within / 2000 < 0.93


def test_a_machine_without_scatter_is_not_stretched_and_one_that_stalls_is_bounded() -> None:
    assert learned().stretch < 1.03
    times = learned()
    for _ in range(50):
        times.observe(50, 600, 6, 100 * beside_us(50, 6), 800)
    assert times.stretch == 1.5
