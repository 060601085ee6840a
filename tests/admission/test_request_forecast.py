"""Predicted start, first token and end of a request, and refusals of deadlines that would be missed."""

import pytest

from noria.proto.scheduling import Capacity, ClassCapacity, StepTime
from noria.services.admission.core.forecast.request_forecast import (
    QueueAhead,
    RequestForecast,
    missed_deadline,
    predict,
)

FIT = StepTime(base_us=5000, query_token_us=50, cache_token_us=0.1, request_us=100)


def capacity(start_ms: float = 400.0, margin: float = 1.25) -> Capacity:
    return Capacity(
        submitted=0,
        classes=(
            ClassCapacity("", 10, 1000, start_ms=900.0),
            ClassCapacity("batch", 10, 1000, start_ms, request_ms=20.0, token_ms=0.1, margin=margin),
        ),
        step_time=FIT,
        ready=True,
        step_ms=10.0,
        prefill_tokens=200,
        prefill_step_ms=15.0,
    )


def test_a_request_starts_after_the_queue_and_what_is_on_the_way_and_the_step_that_runs() -> None:
    alone = predict(capacity(), "batch", QueueAhead(), 200, 1)
    behind = predict(capacity(), "batch", QueueAhead(3, 500), 200, 1)
    assert alone.start_ms == 410
    assert behind.start_ms - alone.start_ms == pytest.approx(3 * 20 + 500 * 0.1)
    assert predict(capacity(), "unseen", QueueAhead(), 200, 1).start_ms == 910


def test_the_first_token_comes_after_as_many_steps_as_the_prompt_needs_and_the_end_a_step_later_for_each() -> None:
    one = predict(capacity(), "batch", QueueAhead(), 200, 1)
    three = predict(capacity(), "batch", QueueAhead(), 600, 11)
    assert one.first_token_ms - one.start_ms == 15
    assert three.first_token_ms - three.start_ms == 45
    assert three.finish_ms - three.first_token_ms == 100
    assert one.finish_ms == one.first_token_ms
    part = predict(capacity(), "batch", QueueAhead(), 250, 1)
    assert 15 < part.first_token_ms - part.start_ms < 30


def test_before_anything_was_measured_nothing_is_foretold_and_nothing_refused() -> None:
    foretold = predict(Capacity(0, (), ready=True), "batch", QueueAhead(), 500, 100)
    assert foretold == RequestForecast(0, 0, 0, 0)
    assert missed_deadline(foretold, 1, 1) is None


def test_what_would_miss_a_deadline_is_refused_with_the_time_after_which_it_would_not() -> None:
    foretold = predict(capacity(margin=1.0), "batch", QueueAhead(), 200, 11)
    assert missed_deadline(foretold, foretold.first_token_ms, foretold.finish_ms) is None
    miss = missed_deadline(foretold, foretold.first_token_ms - 150, None)
    assert miss is not None and (miss.name, miss.retry_after_ms) == ("ttl_first_ms", 150)
    miss = missed_deadline(foretold, None, foretold.finish_ms - 200)
    assert miss is not None and (miss.name, miss.retry_after_ms) == ("ttl_ms", 200)


def test_waiting_is_not_advised_where_it_does_not_help() -> None:
    miss = missed_deadline(predict(capacity(), "batch", QueueAhead(), 200_000, 1), 1000, None)
    assert miss is not None and miss.retry_after_ms is None


def test_a_wait_is_judged_with_the_margin_by_which_such_waits_were_exceeded() -> None:
    foretold = predict(capacity(margin=1.5), "batch", QueueAhead(), 200, 1)
    assert missed_deadline(foretold, foretold.first_token_ms + 199, None) is not None
    assert missed_deadline(foretold, foretold.first_token_ms + 200, None) is None
