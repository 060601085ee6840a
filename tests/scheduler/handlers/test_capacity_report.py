"""What admission is told it may count on."""

from fakes.desk import Desk, submission
from fakes.executor import geometry

from noria.services.scheduler.core.handlers.capacity_report import ALL
from noria.services.scheduler.core.interface.events import AdmissionJoined
from noria.services.scheduler.core.interface.settings import CoreSettings


def test_credit_is_what_the_queue_still_takes_in_requests_and_tokens() -> None:
    desk = Desk(CoreSettings(queue_requests_max=10, queue_tokens_max=100), join=False)
    desk.submit(submission(1, prompt=30), submission(2, prompt=20))
    offered = desk.core.capacity().classes[0]
    assert (offered.traffic_class, offered.requests, offered.tokens) == (ALL, 8, 50)
    desk.tell(desk.executor.geometry)
    desk.planned()
    offered = desk.core.capacity().classes[0]
    assert (offered.requests, offered.tokens) == (10, 100)


def test_credit_is_never_below_zero() -> None:
    desk = Desk(CoreSettings(queue_requests_max=1, queue_tokens_max=5), join=False)
    desk.submit(submission(1), submission(2))
    offered = desk.core.capacity().classes[0]
    assert (offered.requests, offered.tokens) == (0, 0)


def test_submissions_are_counted_for_the_present_life_of_admission_ignored_ones_too() -> None:
    desk = Desk()
    desk.submit(submission(1), submission(2))
    desk.submit(submission(2))
    assert desk.core.capacity().submitted == 3
    desk.tell(AdmissionJoined())
    assert desk.core.capacity().submitted == 0
    desk.submit(submission(1))
    assert desk.core.capacity().submitted == 1


def test_the_largest_request_is_bounded_by_cache_and_context() -> None:
    assert Desk(join=False).core.capacity().largest_tokens == 0
    assert Desk(shape=geometry(num_blocks=12, page_size=4)).core.capacity().largest_tokens == 40
    assert Desk(shape=geometry(max_model_tokens=30)).core.capacity().largest_tokens == 30


def test_the_predicted_start_grows_with_the_queue_and_is_zero_without_one() -> None:
    desk = Desk(CoreSettings(max_requests_per_batch=1))
    assert desk.core.capacity().classes[0].start_ms == 0
    desk.submit(*(submission(number, output=5) for number in range(8)))
    predictions = []
    for _ in range(100):
        if desk.plan() is None:
            if not desk.executor.queued:
                break
            desk.done()
        predictions.append(desk.core.capacity().classes[0].start_ms)
    assert max(predictions) > 0
    assert predictions[-1] == 0
    # Each request takes five steps of a millisecond.
    halfway = [each for each in predictions if each][len(predictions) // 2 - len(predictions) // 4]
    assert 5 <= halfway <= 40
