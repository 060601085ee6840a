"""When admission is told of credit and of predictions."""

import pytest
from msgspec.structs import replace

from noria.proto.scheduling import Capacity, ClassCapacity, StepTime
from noria.services.scheduler.capacity_updates import PREDICTIONS_NS, CapacityUpdates

FIRST = Capacity(1, (ClassCapacity("", 10, 100),), ready=True)


def published() -> CapacityUpdates:
    """The first capacity was told at 0."""
    publishing = CapacityUpdates()
    assert publishing.is_due(FIRST, 0)
    publishing.mark_sent(FIRST, 0)
    return publishing


@pytest.mark.parametrize(
    "changed",
    [
        replace(FIRST, submitted=2),
        replace(FIRST, classes=(ClassCapacity("", 9, 100),)),
        replace(FIRST, classes=(ClassCapacity("", 10, 99),)),
        replace(FIRST, classes=(*FIRST.classes, ClassCapacity("batch", 1, 1))),
        replace(FIRST, largest_tokens=7),
        replace(FIRST, ready=False),
    ],
)
def test_a_change_of_credit_is_told_at_once(changed: Capacity) -> None:
    assert published().is_due(changed, 1)


@pytest.mark.parametrize(
    "changed",
    [
        replace(FIRST, step_ms=3.0),
        replace(FIRST, step_time=StepTime(1.0)),
        replace(FIRST, prefill_tokens=5, prefill_step_ms=2.0),
        replace(FIRST, classes=(ClassCapacity("", 10, 100, start_ms=4.0),)),
    ],
)
def test_changed_predictions_are_told_when_the_last_ones_are_old(changed: Capacity) -> None:
    publishing = published()
    assert not publishing.is_due(changed, PREDICTIONS_NS - 1)
    assert publishing.due_ns == PREDICTIONS_NS
    assert publishing.is_due(changed, PREDICTIONS_NS)
    publishing.mark_sent(changed, PREDICTIONS_NS)
    assert not publishing.is_due(changed, PREDICTIONS_NS + 1)
    assert publishing.due_ns is None


def test_what_was_not_sent_is_wanted_again() -> None:
    publishing = CapacityUpdates()
    assert publishing.is_due(FIRST, 0)
    assert publishing.is_due(FIRST, 1)


def test_who_begins_anew_is_told_again() -> None:
    publishing = published()
    publishing.forget()
    assert publishing.is_due(FIRST, 1)
