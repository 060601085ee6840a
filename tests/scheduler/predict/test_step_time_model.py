"""The step-time model."""

import random

import pytest

from noria.proto.scheduling import StepTime
from noria.services.scheduler.core.predict.step_time_model import StepTimeModel


def test_the_model_learns_the_coefficients_of_a_linear_machine() -> None:
    model = StepTimeModel()
    for step in range(400):
        query, cache, requests = 1 + step * 37 % 500, step * 911 % 20_000, 1 + step * 13 % 60
        model.observe(query, cache, requests, int(2000 + 30 * query + 0.05 * cache + 12 * requests))
    fit = model.coefficients()
    assert fit.base_us == pytest.approx(2000, rel=0.02)
    assert fit.query_token_us == pytest.approx(30, rel=0.02)
    assert fit.cache_token_us == pytest.approx(0.05, rel=0.05)
    assert fit.request_us == pytest.approx(12, rel=0.1)
    assert model.predict_us(100, 1000, 10) == pytest.approx(5170, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_one_step_in_twenty_that_takes_twenty_times_as_long_does_not_mislead_it(seed: int) -> None:
    draw, model = random.Random(seed), StepTimeModel()
    for step in range(600):
        requests = draw.randrange(1, 60)
        query = requests + (draw.randrange(450) if step % 3 else 0)
        cache = draw.randrange(100, 60_000)
        spent = (2000 + 30 * query + 0.05 * cache + 12 * requests) * draw.uniform(0.97, 1.03)
        model.observe(query, cache, requests, int(spent * (20 if draw.random() < 0.05 else 1)))
    fit = model.coefficients()
    assert fit.query_token_us == pytest.approx(30, rel=0.05)
    assert fit.cache_token_us == pytest.approx(0.05, rel=0.1)
    for query, cache, requests in ((1, 100, 1), (32, 20_000, 32), (512, 0, 4)):
        right = 2000 + 30 * query + 0.05 * cache + 12 * requests
        assert model.predict_us(query, cache, requests) == pytest.approx(right, rel=0.05)


def test_a_long_time_of_decodes_does_not_make_it_forget_what_a_prefill_costs() -> None:
    model = StepTimeModel()
    for step in range(200):
        model.observe(300 + step, 1000, 3, 2000 + 30 * (300 + step) + 300)
    for step in range(20_000):
        requests = 20 + step % 3
        model.observe(requests, 9000 + step % 50, requests, 2000 + 130 * requests)
    assert model.predict_us(400, 1000, 3) == pytest.approx(14_300, rel=0.05)
    assert model.predict_us(21, 9000, 21) == pytest.approx(4730, rel=0.05)


def test_no_coefficient_is_negative_whatever_is_measured() -> None:
    model = StepTimeModel()
    for step in range(200):
        model.observe(1 + step % 50, 100, 1 + step % 7, 5000 - 60 * (step % 50))
    fit = model.coefficients()
    assert min(fit.base_us, fit.query_token_us, fit.cache_token_us, fit.request_us) >= 0


def test_the_model_follows_a_machine_that_became_slower() -> None:
    model = StepTimeModel()
    for speed in (1, 3):
        for step in range(1500):
            model.observe(1 + step % 100, 0, 1, speed * (1000 + 10 * (1 + step % 100)))
    assert model.predict_us(50, 0, 1) == pytest.approx(4500, rel=0.03)


def test_steps_without_work_or_time_say_nothing() -> None:
    model = StepTimeModel()
    model.observe(0, 0, 0, 50)
    model.observe(5, 5, 5, 0)
    assert model.coefficients() == StepTime()
    assert model.predict_us(10, 10, 10) == 0


def test_one_step_is_enough_for_a_first_prediction() -> None:
    model = StepTimeModel()
    model.observe(10, 100, 10, 5000)
    assert model.predict_us(10, 100, 10) == pytest.approx(5000, rel=0.01)


def test_what_a_long_prompt_costs_towards_its_end_is_learned_apart_from_what_is_read() -> None:
    draw, model = random.Random(1), StepTimeModel()
    for step in range(600):
        start = draw.randrange(4000)
        length = 0 if step % 3 == 0 else draw.randrange(16, 200)
        rows = draw.randrange(1, 12)
        read, pairs = rows * 500 + (start + length if length else 0), length * (2 * start + length) // 2
        spent = 9000 + 600 * (rows + length) + 1.8 * read + 0.26 * pairs
        model.observe(rows + length, read, rows + bool(length), int(spent * draw.uniform(0.97, 1.03)), pairs)
    fit = model.coefficients()
    assert fit.pair_us == pytest.approx(0.26, rel=0.1)
    assert fit.cache_token_us == pytest.approx(1.8, rel=0.25)
    deep, shallow = (model.predict_us(100, start + 100, 1, 100 * (start + 50)) for start in (3500, 0))
    assert (deep, shallow) == (pytest.approx(167_780, rel=0.05), pytest.approx(70_480, rel=0.05))
