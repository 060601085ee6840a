"""The step-time model."""

import pytest

from noria.proto.scheduling import StepTime
from noria.services.scheduler.core.step_time import StepTimeModel


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


def test_no_coefficient_is_negative_whatever_is_measured() -> None:
    model = StepTimeModel()
    for step in range(200):
        model.observe(1 + step % 50, 100, 1 + step % 7, 5000 - 60 * (step % 50))
    fit = model.coefficients()
    assert min(fit.base_us, fit.query_token_us, fit.cache_token_us, fit.request_us) >= 0


def test_the_model_follows_a_machine_that_became_slower() -> None:
    model = StepTimeModel()
    for speed in (1, 2):
        for step in range(1500):
            model.observe(1 + step % 100, 0, 1, speed * (1000 + 10 * (1 + step % 100)))
    assert model.predict_us(50, 0, 1) == pytest.approx(3000, rel=0.02)


def test_steps_without_work_or_time_say_nothing() -> None:
    model = StepTimeModel()
    model.observe(0, 0, 0, 50)
    model.observe(5, 5, 5, 0)
    assert model.coefficients() == StepTime()
    assert model.predict_us(10, 10, 10) == 0
