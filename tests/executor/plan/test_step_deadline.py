"""When a step must be taken for hung."""

from noria.services.executor.plan.step_deadline import StepDeadline

SECOND = 1_000_000_000


def test_a_step_is_given_ten_times_its_prediction_and_never_less_than_all_are_given() -> None:
    vigil = StepDeadline(15 * SECOND)
    assert (vigil.due_ns, vigil.expected_us) == (None, 0)
    vigil.posted(0.0, 0)
    assert vigil.due_ns == 15 * SECOND
    vigil.finished(SECOND)
    vigil.posted(4e6, 2 * SECOND)
    assert (vigil.due_ns, vigil.expected_us) == (42 * SECOND, 4_000_000)


def test_the_next_step_begins_when_the_one_before_it_is_over() -> None:
    vigil = StepDeadline(SECOND)
    vigil.posted(1e6, 0)
    vigil.posted(2e6, 0)
    assert vigil.due_ns == 10 * SECOND
    vigil.finished(7 * SECOND)
    assert vigil.due_ns == 27 * SECOND
    vigil.finished(8 * SECOND)
    assert vigil.due_ns is None


def test_a_process_that_stood_still_has_not_waited() -> None:
    vigil = StepDeadline(10 * SECOND)
    assert not vigil.over(0)
    vigil.posted(0.0, 0)
    assert not vigil.over(SECOND)
    assert not vigil.over(100 * SECOND)  # it was stopped, and the step with it
    assert not any(vigil.over(second * SECOND) for second in range(101, 109))
    assert vigil.over(109 * SECOND)
