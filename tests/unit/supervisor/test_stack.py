"""The supervisor's core: whom to start, stop and kill, and how it ends."""

import itertools
from collections.abc import Iterable

import pytest

from noria.proto.base import Service
from noria.services.supervisor.core.events import (
    Begun,
    Event,
    Exited,
    Kill,
    Over,
    Reply,
    Reported,
    Served,
    Spawn,
    Spawned,
    StopAsked,
    Terminate,
    Ticked,
)
from noria.services.supervisor.core.stack import START_ORDER, STOP_ORDER, Course, IllegalEvent, Stack, describe_exit

SECOND = 1_000_000_000


def apply(stack: Stack, *events: Event) -> list[Reply]:
    replies: list[Reply] = []
    for event in events:
        replies += stack.apply(event)
        stack.check()
    return replies


def begun() -> Stack:
    stack = Stack(start_timeout_ns=180 * SECOND, stop_timeout_ns=10 * SECOND)
    replies = apply(stack, Begun(0))
    assert replies == [Spawn(service) for service in START_ORDER]
    apply(stack, *(Spawned(service, 100 + index, 0) for index, service in enumerate(START_ORDER)))
    return stack


def serving() -> Stack:
    stack = begun()
    replies = apply(stack, *(Reported(service, True, 4 * SECOND) for service in START_ORDER))
    assert replies == [Served(4000)]
    return stack


def end_all(stack: Stack, services: Iterable[Service], now_ns: int = 0, status: int = 0) -> list[Reply]:
    return apply(stack, *(Exited(service, status, now_ns) for service in services))


def test_the_executor_is_started_first_and_every_service_is_in_both_orders() -> None:
    everyone = {service for service in Service if service is not Service.SUPERVISOR}
    assert START_ORDER[0] is Service.EXECUTOR
    assert set(START_ORDER) == set(STOP_ORDER) == everyone
    assert STOP_ORDER[0] is Service.GATEWAY


def test_the_stack_serves_when_the_last_child_is_ready_and_not_before() -> None:
    stack = begun()
    assert apply(stack, *(Reported(service, True, SECOND) for service in START_ORDER[:-1])) == []
    assert apply(stack, Reported(START_ORDER[0], False, SECOND)) == []
    assert apply(stack, Reported(START_ORDER[-1], True, 2 * SECOND)) == []
    assert apply(stack, Reported(START_ORDER[0], True, 3 * SECOND)) == [Served(3000)]
    assert stack.course is Course.SERVING


def test_an_orderly_stop_asks_one_child_after_the_other_and_exits_0() -> None:
    stack = serving()
    assert apply(stack, StopAsked(5 * SECOND)) == [Terminate(STOP_ORDER[0])]
    for service, following in itertools.pairwise(STOP_ORDER):
        assert apply(stack, Exited(service, 0, 6 * SECOND)) == [Terminate(following)]
    assert apply(stack, Exited(STOP_ORDER[-1], 0, 7 * SECOND)) == [Over(0, "")]


def test_a_child_that_has_not_yet_caught_sigterm_ends_orderly_too() -> None:
    stack = begun()
    apply(stack, StopAsked(SECOND))
    assert end_all(stack, STOP_ORDER, status=-15)[-1] == Over(0, "")


def test_a_child_that_does_not_stop_in_time_is_killed_and_named() -> None:
    stack = serving()
    apply(stack, StopAsked(0))
    assert stack.wanted_ns() == 10 * SECOND
    assert apply(stack, Ticked(10 * SECOND - 1)) == []
    assert apply(stack, Ticked(10 * SECOND)) == [Kill(Service.GATEWAY, overdue=True)]
    assert apply(stack, Ticked(11 * SECOND)) == []
    assert apply(stack, Exited(Service.GATEWAY, -9, 12 * SECOND)) == [Terminate(Service.ADMISSION)]
    over = end_all(stack, STOP_ORDER[1:], 12 * SECOND)[-1]
    assert over == Over(1, "gateway did not stop within 10 s and was killed")


def test_a_second_request_to_stop_kills_all_that_live() -> None:
    stack = serving()
    apply(stack, StopAsked(0), Exited(Service.GATEWAY, 0, 0))
    killed = apply(stack, StopAsked(1))
    assert killed == [Kill(service, overdue=False) for service in START_ORDER if service is not Service.GATEWAY]
    assert apply(stack, StopAsked(2)) == []
    assert end_all(stack, START_ORDER[:-1], status=-9)[-1] == Over(1, "killed at the second signal")


@pytest.mark.parametrize("victim", START_ORDER)
def test_a_death_while_serving_stops_the_others_and_is_named(victim: Service) -> None:
    stack = serving()
    first = apply(stack, Exited(victim, -9, SECOND))
    assert first == [Terminate(next(service for service in STOP_ORDER if service is not victim))]
    over = end_all(stack, [service for service in STOP_ORDER if service is not victim])[-1]
    assert isinstance(over, Over)
    assert over.exit_status == 1
    assert f"{victim.value} died of SIGKILL (signal 9)" in over.cause


@pytest.mark.parametrize(
    ("status", "exit_status", "words"),
    [(2, 2, "could not start"), (1, 1, "exit status 1"), (0, 1, "exit status 0"), (-11, 1, "SIGSEGV")],
)
def test_a_death_while_starting_tells_a_mistake_of_the_user_from_a_failure(
    status: int, exit_status: int, words: str
) -> None:
    stack = begun()
    apply(stack, Exited(Service.GATEWAY, status, SECOND))
    over = end_all(stack, STOP_ORDER[1:])[-1]
    assert isinstance(over, Over)
    assert over.exit_status == exit_status
    assert words in over.cause
    assert over.cause.startswith("gateway")


def test_exit_status_2_of_a_ready_child_is_a_failure_and_no_mistake_of_the_user() -> None:
    stack = serving()
    apply(stack, Exited(Service.GATEWAY, 2, SECOND))
    over = end_all(stack, STOP_ORDER[1:])[-1]
    assert isinstance(over, Over)
    assert over.exit_status == 1


def test_the_first_cause_counts_and_not_what_follows_from_it() -> None:
    stack = serving()
    apply(stack, Exited(Service.EXECUTOR, -9, 0), Exited(Service.SCHEDULER, 1, 0), Exited(Service.GATEWAY, 1, 0))
    over = end_all(stack, (Service.ADMISSION, Service.DETOKENIZER))[-1]
    assert isinstance(over, Over)
    assert over.cause.startswith("executor")


def test_a_child_that_fails_while_stopping_makes_the_stop_a_failure() -> None:
    stack = serving()
    apply(stack, StopAsked(0), Exited(Service.GATEWAY, 1, 0))
    over = end_all(stack, STOP_ORDER[1:])[-1]
    assert over == Over(1, "gateway ended unexpectedly with exit status 1 while the stack was stopping")


def test_a_start_that_takes_too_long_names_those_that_are_not_ready() -> None:
    stack = begun()
    apply(stack, *(Reported(service, True, 0) for service in START_ORDER if service is not Service.EXECUTOR))
    assert stack.wanted_ns() == 180 * SECOND
    assert apply(stack, Ticked(180 * SECOND)) == [Terminate(Service.GATEWAY)]
    over = end_all(stack, STOP_ORDER)[-1]
    assert isinstance(over, Over)
    assert over.exit_status == 1
    assert "not ready within 180 s: executor;" in over.cause


def test_nothing_is_timed_while_serving() -> None:
    assert serving().wanted_ns() is None


def test_readiness_that_goes_while_serving_changes_nothing() -> None:
    stack = serving()
    assert apply(stack, Reported(Service.ADMISSION, False, 9 * SECOND)) == []
    assert stack.course is Course.SERVING


@pytest.mark.parametrize(
    ("stack", "event"),
    [
        (begun(), Begun(1)),
        (begun(), Spawned(Service.GATEWAY, 7, 1)),
        (Stack(SECOND, SECOND), Spawned(Service.GATEWAY, 7, 1)),
        (Stack(SECOND, SECOND), Exited(Service.GATEWAY, 0, 1)),
        (Stack(SECOND, SECOND), Reported(Service.GATEWAY, True, 1)),
    ],
)
def test_an_event_that_cannot_happen_raises_and_changes_nothing(stack: Stack, event: Event) -> None:
    def seen() -> list[object]:
        return [stack.course, *((child.phase, child.pid) for child in stack.children.values())]

    before = seen()
    with pytest.raises(IllegalEvent):
        stack.apply(event)
    assert seen() == before
    stack.check()


def test_a_death_by_memory_is_hinted_at() -> None:
    assert "memory" in describe_exit(-9)
    assert "signal 42" in describe_exit(-42)
