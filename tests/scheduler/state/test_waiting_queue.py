"""The waiting queue and the slots."""

from fakes.desk import submission

from noria.services.scheduler.core.policy.fifo_policy import AgeOrder
from noria.services.scheduler.core.policy.ranked_heap import RankedHeap
from noria.services.scheduler.core.state.free_slots import FreeSlots
from noria.services.scheduler.core.state.request import Request, make_request
from noria.services.scheduler.core.state.waiting_queue import WaitingQueue


def queue_of(count: int) -> tuple[WaitingQueue, list[Request]]:
    queue = WaitingQueue(AgeOrder())
    requests = [make_request(submission(number), 0, number) for number in range(count)]
    for request in reversed(requests):
        queue.add(request)
    return queue, requests


def test_the_least_rank_is_first_whatever_the_order_of_joining() -> None:
    queue, requests = queue_of(20)
    order = []
    while (first := queue.first()) is not None:
        queue.check()
        order.append(first)
        queue.remove(first)
    assert order == requests


def test_leaving_from_the_middle_costs_no_place_and_leaves_nothing_behind() -> None:
    queue, requests = queue_of(1000)
    for request in requests[1:]:
        queue.remove(request)
    queue.check()
    assert queue.first() is requests[0]
    assert queue.tokens == requests[0].known


def test_who_leaves_and_joins_again_waits_once() -> None:
    queue, requests = queue_of(2)
    queue.remove(requests[0])
    queue.add(requests[0])
    assert queue.first() is requests[0]
    queue.remove(requests[0])
    assert queue.first() is requests[1]
    queue.remove(requests[1])
    assert queue.first() is None


def test_a_line_is_swept_of_those_who_left() -> None:
    _, requests = queue_of(1000)
    line = RankedHeap[Request]()
    for request in requests:
        line.add(request, request.asked.seniority)
    for request in requests[1:]:
        line.remove(request)
    line.check({requests[0]})
    assert len(line._heap) <= 64


def test_who_is_passed_over_has_its_place_again_when_it_is_woken() -> None:
    queue, requests = queue_of(3)
    queue.pass_over(requests[0])
    queue.check()
    assert queue.first() is requests[1]
    queue.wake(requests[0])
    queue.wake(requests[1])
    assert queue.first() is requests[0]
    queue.pass_over(requests[0])
    queue.remove(requests[0])
    queue.check()
    assert len(queue) == 2


def test_a_slot_given_back_is_free_from_the_next_plan_and_told_once() -> None:
    slots = FreeSlots(2)
    assert (slots.take(), slots.take(), slots.free) == (0, 1, 0)
    slots.give_back(0)
    assert slots.free == 0
    assert slots.begin_plan()
    assert (slots.free, slots.used) == (1, 2)
    assert slots.take_releases() == (0,)
    assert slots.used == 1
    assert not slots.begin_plan()
    assert slots.take_releases() == ()
