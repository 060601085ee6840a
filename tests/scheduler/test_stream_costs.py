"""What streams cost is told until it is on record, and numbered so that it counts once."""

import pytest

from noria.proto.base import Stream
from noria.proto.scheduling import Accounted, Expenses, Spent
from noria.services.scheduler import stream_costs as module
from noria.services.scheduler.stream_costs import StreamCosts


def spent(number: int) -> Spent:
    return Spent(Stream(number, 0), 10 * number, 0, 0, "acme", "batch")


def tell(costs: StreamCosts) -> list[tuple[int, int]]:
    """Everything that is due, as (number, request)."""
    told = []
    while (expenses := costs.next_batch()) is not None:
        costs.mark_sent(expenses)
        told += [(number, each.stream.request) for number, each in enumerate(expenses.entries, expenses.first)]
    return told


def test_what_was_told_is_kept_until_it_is_on_record_and_told_again_to_whoever_joins() -> None:
    costs = StreamCosts()
    for number in (1, 2, 3):
        costs.add(spent(number))
    assert tell(costs) == [(1, 1), (2, 2), (3, 3)]
    assert tell(costs) == []
    costs.mark_recorded(2)
    costs.add(spent(4))
    assert tell(costs) == [(4, 4)]
    costs.send_again()
    assert tell(costs) == [(3, 3), (4, 4)]
    costs.mark_recorded(4)
    assert len(costs) == 0 and costs.next_batch() is None


def test_an_answer_that_comes_late_or_twice_takes_nothing_that_is_not_on_record() -> None:
    costs = StreamCosts()
    for number in (1, 2, 3):
        costs.add(spent(number))
    costs.mark_recorded(2)
    costs.mark_recorded(1)
    costs.mark_recorded(2)
    assert tell(costs) == [(3, 3)]


def test_an_answer_to_what_was_never_told_takes_what_there_is_and_numbers_go_on() -> None:
    costs = StreamCosts()
    costs.add(spent(1))
    costs.mark_recorded(99)
    costs.add(spent(2))
    assert tell(costs) == [(2, 2)]


def test_they_go_in_messages_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_MAX", 2)
    costs = StreamCosts()
    for number in range(1, 6):
        costs.add(spent(number))
    lengths = []
    while (expenses := costs.next_batch()) is not None:
        lengths.append((expenses.first, len(expenses.entries)))
        costs.mark_sent(expenses)
    assert lengths == [(1, 2), (3, 2), (5, 1)]


def test_nobody_who_never_answers_makes_it_keep_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    costs = StreamCosts()
    for number in range(1, 6):
        costs.add(spent(number))
        tell(costs)
    assert (len(costs), costs.lost) == (3, 2)
    costs.send_again()
    assert tell(costs) == [(3, 3), (4, 4), (5, 5)]


def test_messages_say_what_they_mean() -> None:
    assert Expenses((spent(1),)).first == 0, "one without a number is counted as new"
    assert Accounted(5, 2) == Accounted(life=5, number=2)
