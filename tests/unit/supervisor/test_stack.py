"""The supervisor's core: whom to start, stop and kill, and how it ends."""

import itertools
from collections.abc import Iterable

import msgspec
import pytest

from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.services.supervisor.core.child import Phase
from noria.services.supervisor.core.events import (
    Adopted,
    Begun,
    Event,
    Exited,
    Heard,
    Kill,
    Over,
    Quiesce,
    Relieve,
    Reply,
    Served,
    Spawn,
    Spawned,
    StopAsked,
    Terminate,
    Ticked,
)
from noria.services.supervisor.core.exit_causes import describe_exit
from noria.services.supervisor.core.stack import Stack
from noria.services.supervisor.core.stack_phase import START_ORDER, STOP_ORDER, Course, IllegalEvent
from noria.services.supervisor.core.supervision_limits import Limits

SECOND = 1_000_000_000
LIMITS = Limits(
    start_ns=180 * SECOND,
    stop_ns=10 * SECOND,
    drain_ns=0,
    hang_ns=15 * SECOND,
    pause_ns=SECOND // 2,
    pause_max_ns=3 * SECOND,
    deaths=5,
)
STOPPING = [Quiesce(0), Terminate(STOP_ORDER[0])]
PATIENT = Limits(180 * SECOND, 10 * SECOND, 20 * SECOND, 15 * SECOND, SECOND // 2, 3 * SECOND, 5)


def apply(stack: Stack, *events: Event) -> list[Reply]:
    replies: list[Reply] = []
    for event in events:
        replies += stack.apply(event)
        stack.check()
    return replies


def heard(
    service: Service,
    now_ns: int,
    progress: int = 0,
    *,
    busy: bool = False,
    state: State = State.READY,
    expected_us: int = 0,
) -> Heard:
    return Heard(service, state, progress, busy, expected_us, now_ns)


def begun(limits: Limits = LIMITS) -> Stack:
    stack = Stack(limits)
    replies = apply(stack, Begun(0))
    assert replies == [Spawn(service) for service in START_ORDER]
    apply(stack, *(Spawned(service, 100 + index, 0) for index, service in enumerate(START_ORDER)))
    return stack


def serving(limits: Limits = LIMITS) -> Stack:
    stack = begun(limits)
    replies = apply(stack, *(heard(service, 4 * SECOND) for service in START_ORDER))
    assert replies == [Served(4000)]
    return stack


def end_all(stack: Stack, services: Iterable[Service], now_ns: int = 0, status: int = 0) -> list[Reply]:
    return apply(stack, *(Exited(service, status, now_ns) for service in services))


def others(service: Service) -> list[Service]:
    return [each for each in STOP_ORDER if each is not service]


def die(stack: Stack, service: Service, now_ns: int, status: int = -9, words: str = "") -> int:
    """A death, and the start after it; returns how long the pause was."""
    replies = apply(stack, Exited(service, status, now_ns, words))
    due_ns = now_ns
    if not replies:
        wanted_ns = stack.wanted_ns()
        assert wanted_ns is not None
        assert apply(stack, Ticked(wanted_ns - 1)) == []
        due_ns = wanted_ns
        replies = apply(stack, Ticked(due_ns))
    assert replies == [Spawn(service)]
    apply(stack, Spawned(service, 900, due_ns))
    return due_ns - now_ns


def test_the_executor_is_started_first_and_every_service_is_in_both_orders() -> None:
    everyone = {service for service in Service if service is not Service.SUPERVISOR}
    assert START_ORDER[0] is Service.EXECUTOR
    assert set(START_ORDER) == set(STOP_ORDER) == everyone
    assert STOP_ORDER[0] is Service.ADMISSION


def test_the_stack_serves_when_the_last_child_is_ready_and_not_before() -> None:
    stack = begun()
    assert apply(stack, *(heard(service, SECOND) for service in START_ORDER[:-1])) == []
    assert apply(stack, heard(START_ORDER[0], SECOND, state=State.STARTING)) == []
    assert apply(stack, heard(START_ORDER[-1], 2 * SECOND)) == []
    assert apply(stack, heard(START_ORDER[0], 3 * SECOND)) == [Served(3000)]
    assert stack.course is Course.SERVING


def stop(stack: Stack, now_ns: int) -> list[Reply]:
    """Ask for a stop of a stack that has nothing left to finish."""
    assert isinstance(apply(stack, StopAsked(now_ns))[0], Quiesce)
    return apply(stack, heard(Service.ADMISSION, now_ns, state=State.STOPPED))


def test_an_orderly_stop_asks_one_child_after_the_other_and_exits_0() -> None:
    stack = serving()
    assert stop(stack, 5 * SECOND) == [Terminate(STOP_ORDER[0])]
    for service, following in itertools.pairwise(STOP_ORDER):
        assert apply(stack, Exited(service, 0, 6 * SECOND)) == [Terminate(following)]
    assert apply(stack, Exited(STOP_ORDER[-1], 0, 7 * SECOND)) == [Over(0, "")]


def test_a_child_that_has_not_yet_caught_sigterm_ends_orderly_too() -> None:
    stack = begun()
    apply(stack, StopAsked(SECOND))
    assert end_all(stack, STOP_ORDER, status=-15)[-1] == Over(0, "")


def test_a_child_that_does_not_stop_in_time_is_killed_and_named() -> None:
    stack = serving()
    stop(stack, 0)
    assert stack.wanted_ns() == 10 * SECOND
    assert apply(stack, Ticked(10 * SECOND - 1)) == []
    assert apply(stack, Ticked(10 * SECOND)) == [Kill(STOP_ORDER[0], "did not stop within 10 s")]
    assert apply(stack, Ticked(11 * SECOND)) == []
    assert apply(stack, Exited(STOP_ORDER[0], -9, 12 * SECOND)) == [Terminate(STOP_ORDER[1])]
    over = end_all(stack, STOP_ORDER[1:], 12 * SECOND)[-1]
    assert over == Over(1, "admission did not stop within 10 s and was killed")


def test_a_second_request_to_stop_kills_all_that_live() -> None:
    stack = serving()
    stop(stack, 0)
    apply(stack, Exited(Service.GATEWAY, 0, 0))
    killed = apply(stack, StopAsked(1))
    why = "a second signal came"
    assert killed == [Kill(service, why) for service in START_ORDER if service is not Service.GATEWAY]
    assert apply(stack, StopAsked(2)) == []
    assert end_all(stack, START_ORDER[:-1], status=-9)[-1] == Over(1, "killed at the second signal")


@pytest.mark.parametrize("victim", START_ORDER)
def test_a_death_while_serving_has_only_that_service_started_again_and_at_once(victim: Service) -> None:
    stack = serving()
    assert apply(stack, Exited(victim, -9, 5 * SECOND)) == [Spawn(victim)]
    assert stack.course is Course.SERVING
    assert [child.service for child in stack.children.values() if not child.alive] == [victim]


def test_deaths_in_a_row_lengthen_the_pause_up_to_its_maximum_and_then_everything_stops() -> None:
    stack = serving()
    pauses = [die(stack, Service.EXECUTOR, second * SECOND) / SECOND for second in (5, 10, 15, 20)]
    assert pauses == [0, 0.5, 1, 2]
    first = apply(stack, Exited(Service.EXECUTOR, -11, 30 * SECOND, "one\ntwo"))
    assert first == STOPPING
    over = end_all(stack, [service for service in STOP_ORDER if service is not Service.EXECUTOR])[-1]
    assert over == Over(
        1,
        "executor died 5 times in a row without a step in between, the last time it died of SIGSEGV (signal 11); "
        "it said last:\n  one\n  two",
    )


def test_a_pause_has_a_maximum() -> None:
    stack = serving(Limits(180 * SECOND, SECOND, 0, 15 * SECOND, SECOND, 3 * SECOND, 9))
    assert [die(stack, Service.GATEWAY, second * SECOND) // SECOND for second in range(5, 85, 10)] == [
        0,
        1,
        2,
        3,
        3,
        3,
        3,
        3,
    ]


def live(stack: Stack, service: Service, from_ns: int, until_ns: int, progress: int) -> None:
    """A life of which somebody hears while the scheduler makes so much progress at its end."""
    apply(stack, heard(service, from_ns), heard(Service.SCHEDULER, until_ns, progress, busy=True))


@pytest.mark.parametrize(
    ("lived_s", "steps", "forgiven"), [(2.5, 7, True), (2.5, 0, False), (1.5, 7, False), (61, 0, True), (59, 0, False)]
)
def test_deaths_are_forgiven_once_a_step_was_made_in_a_settled_life_or_a_life_lasts(
    lived_s: float, steps: int, forgiven: bool
) -> None:
    stack = serving()
    die(stack, Service.DETOKENIZER, 5 * SECOND)
    die(stack, Service.DETOKENIZER, 6 * SECOND)
    now_ns = 10 * SECOND + int(lived_s * SECOND)
    live(stack, Service.DETOKENIZER, 10 * SECOND, now_ns, steps)
    apply(stack, *(heard(service, now_ns, steps) for service in START_ORDER), Ticked(now_ns))
    assert stack.children[Service.DETOKENIZER].deaths == (0 if forgiven else 2)


def test_an_orderly_end_that_somebody_asked_for_is_no_death() -> None:
    stack = serving()
    for second in range(10, 30):
        assert apply(stack, Exited(Service.ADMISSION, 0, second * SECOND)) == [Spawn(Service.ADMISSION)]
        apply(
            stack, Spawned(Service.ADMISSION, 900 + second, second * SECOND), heard(Service.ADMISSION, second * SECOND)
        )
    assert stack.children[Service.ADMISSION].deaths == 0


def test_a_child_that_leaves_at_once_again_and_again_is_given_up_though_it_says_nothing_is_wrong() -> None:
    stack = serving()
    apply(stack, Exited(Service.ADMISSION, 0, 5 * SECOND), Spawned(Service.ADMISSION, 900, 5 * SECOND))
    for second in (6, 7, 9, 12):
        die(stack, Service.ADMISSION, second * SECOND, status=0)
    assert apply(stack, Exited(Service.ADMISSION, 0, 20 * SECOND)) == [Quiesce(0), Terminate(STOP_ORDER[1])]


def test_a_mistake_of_the_user_at_the_first_start_is_not_tried_again() -> None:
    stack = begun()
    apply(stack, Exited(Service.GATEWAY, 2, SECOND))
    over = end_all(stack, others(Service.GATEWAY))[-1]
    assert over == Over(2, "gateway could not start, it says why above")


@pytest.mark.parametrize(("status", "words"), [(1, "exit status 1"), (0, "exit status 0"), (-11, "SIGSEGV")])
def test_a_child_that_never_became_ready_is_given_up_sooner(status: int, words: str) -> None:
    stack = begun()
    assert die(stack, Service.GATEWAY, SECOND, status) == 0
    assert die(stack, Service.GATEWAY, 2 * SECOND, status) == SECOND // 2
    apply(stack, Exited(Service.GATEWAY, status, 4 * SECOND))
    over = end_all(stack, others(Service.GATEWAY))[-1]
    assert isinstance(over, Over)
    assert over.exit_status == 1
    assert over.cause.startswith("gateway died 3 times")
    assert words in over.cause


def test_exit_status_2_of_one_that_was_ready_before_is_a_death_like_others() -> None:
    stack = serving()
    assert die(stack, Service.GATEWAY, 5 * SECOND, 2) == 0
    assert die(stack, Service.GATEWAY, 6 * SECOND, 2) == SECOND // 2


def test_the_first_cause_counts_and_not_what_follows_from_it() -> None:
    stack = begun()
    apply(stack, Exited(Service.EXECUTOR, 2, 0), Exited(Service.SCHEDULER, 1, 0), Exited(Service.GATEWAY, 1, 0))
    over = end_all(stack, (Service.ADMISSION, Service.DETOKENIZER))[-1]
    assert isinstance(over, Over)
    assert over.cause.startswith("executor")


def beat(stack: Stack, seconds: Iterable[int], silent: Service | None = None) -> list[Reply]:
    """Everyone but one is heard of each second, working, and time passes."""
    replies: list[Reply] = []
    for second in seconds:
        alive = [child.service for child in stack.children.values() if child.alive and child.service is not silent]
        replies += apply(stack, *(heard(service, second * SECOND, second, busy=True) for service in alive))
        replies += apply(stack, Ticked(second * SECOND))
    return replies


@pytest.mark.parametrize("victim", START_ORDER)
def test_a_child_that_falls_silent_is_killed_and_started_again(victim: Service) -> None:
    stack = serving(msgspec.structs.replace(LIMITS, hang_ns=10 * SECOND))
    assert beat(stack, range(5, 15), victim) == []
    assert beat(stack, [15], victim) == [Kill(victim, "gave no sign of life for 11 s")]
    assert beat(stack, [16], victim) == []
    assert apply(stack, Exited(victim, -9, 17 * SECOND)) == [Spawn(victim)]
    assert stack.children[victim].deaths == 1


def test_what_was_not_heard_while_the_supervisor_itself_stood_still_says_nothing() -> None:
    stack = serving()
    assert beat(stack, [5, 6]) == []
    assert apply(stack, Ticked(100 * SECOND)) == []
    assert apply(stack, Ticked(101 * SECOND)) == []


@pytest.mark.parametrize(("expected_us", "after_s"), [(0, 15), (1_000_000, 15), (3_000_000, 30)])
def test_an_executor_whose_step_does_not_end_is_killed_after_ten_times_its_prediction(
    expected_us: int, after_s: int
) -> None:
    stack = serving()
    killed_s = 0
    for second in range(5, 60):
        step = heard(Service.EXECUTOR, second * SECOND, 7, busy=True, expected_us=expected_us)
        others = [heard(service, second * SECOND, 7, busy=True) for service in START_ORDER[1:]]
        if apply(stack, step, *others, Ticked(second * SECOND)):
            killed_s = second
            break
    assert killed_s == 5 + after_s + 1
    assert "no progress" in stack.children[Service.EXECUTOR].hang


def test_an_executor_that_has_nothing_to_do_or_still_loads_is_well() -> None:
    stack = serving()
    for second in range(5, 100):
        idle = heard(Service.EXECUTOR, second * SECOND, 7, busy=False)
        assert (
            apply(stack, idle, *(heard(each, second * SECOND) for each in START_ORDER[1:]), Ticked(second * SECOND))
            == []
        )
    die(stack, Service.EXECUTOR, 100 * SECOND)
    for second in range(101, 200):
        loads = heard(Service.EXECUTOR, second * SECOND, busy=True, state=State.STARTING)
        assert (
            apply(stack, loads, *(heard(each, second * SECOND) for each in START_ORDER[1:]), Ticked(second * SECOND))
            == []
        )


def test_a_child_that_does_not_become_ready_again_in_time_is_killed() -> None:
    stack = serving()
    die(stack, Service.EXECUTOR, 5 * SECOND)
    for second in range(6, 185):
        assert apply(stack, *(heard(each, second * SECOND) for each in START_ORDER[1:]), Ticked(second * SECOND)) == []
    apply(stack, *(heard(each, 186 * SECOND) for each in START_ORDER[1:]))
    assert apply(stack, Ticked(186 * SECOND)) == [Kill(Service.EXECUTOR, "was not ready within 180 s")]


def test_services_of_an_earlier_supervisor_are_kept_and_only_the_others_started() -> None:
    stack = Stack(LIMITS)
    adopted = (Service.SCHEDULER, Service.GATEWAY)
    apply(stack, *(Adopted(service, 50, 0) for service in adopted))
    assert apply(stack, Begun(0)) == [Spawn(service) for service in START_ORDER if service not in adopted]
    started = [service for service in START_ORDER if service not in adopted]
    apply(stack, *(Spawned(service, 60, 0) for service in started))
    assert apply(stack, *(heard(service, SECOND) for service in START_ORDER)) == [Served(1000)]
    assert apply(stack, Exited(Service.SCHEDULER, None, 2 * SECOND)) == [Spawn(Service.SCHEDULER)]


def test_a_twin_whose_place_is_taken_gives_way_to_who_has_it() -> None:
    stack = begun()
    apply(stack, Adopted(Service.EXECUTOR, 42, SECOND))
    assert stack.children[Service.EXECUTOR].pid == 42
    assert apply(stack, *(heard(service, 2 * SECOND) for service in START_ORDER)) == [Served(2000)]


def test_a_gateway_that_gave_up_its_place_finishes_apart_from_its_successor() -> None:
    stack = serving()
    left = apply(stack, heard(Service.GATEWAY, 5 * SECOND, state=State.STOPPED))
    assert left == [Relieve(Service.GATEWAY), Spawn(Service.GATEWAY)]
    apply(stack, Spawned(Service.GATEWAY, 900, 5 * SECOND))
    assert stack.children[Service.GATEWAY].deaths == 0


@pytest.mark.parametrize("state", [State.DRAINING, State.STOPPED])
def test_one_that_its_last_supervisor_had_drained_is_replaced(state: State) -> None:
    stack = serving()
    assert apply(stack, heard(Service.ADMISSION, 5 * SECOND, state=state)) == [Terminate(Service.ADMISSION)]
    assert apply(stack, heard(Service.ADMISSION, 6 * SECOND, state=state)) == []
    assert apply(stack, Exited(Service.ADMISSION, 0, 7 * SECOND)) == [Spawn(Service.ADMISSION)]


def test_a_stop_first_lets_what_runs_finish() -> None:
    stack = serving(PATIENT)
    assert apply(stack, StopAsked(10 * SECOND)) == [Quiesce(20_000)]
    assert stack.course is Course.DRAINING
    assert apply(stack, heard(Service.ADMISSION, 11 * SECOND, state=State.DRAINING)) == []
    assert apply(stack, heard(Service.ADMISSION, 12 * SECOND, state=State.STOPPED)) == STOPPING[1:]
    assert end_all(stack, STOP_ORDER, 13 * SECOND)[-1] == Over(0, "")


def test_a_drain_has_an_end_even_when_nobody_says_that_it_is_done() -> None:
    stack = serving(PATIENT)
    apply(stack, StopAsked(10 * SECOND))
    assert stack.wanted_ns() == 32 * SECOND
    for second in range(11, 32):
        drains = heard(Service.ADMISSION, second * SECOND, state=State.DRAINING)
        others = [heard(each, second * SECOND) for each in START_ORDER if each is not Service.ADMISSION]
        assert apply(stack, drains, *others, Ticked(second * SECOND)) == []
    assert apply(stack, Ticked(32 * SECOND)) == STOPPING[1:]


def test_who_dies_during_a_drain_is_started_again_and_told() -> None:
    stack = serving(PATIENT)
    apply(stack, StopAsked(10 * SECOND))
    assert apply(stack, Exited(Service.ADMISSION, -9, 11 * SECOND)) == [Spawn(Service.ADMISSION)]
    apply(stack, Spawned(Service.ADMISSION, 77, 11 * SECOND))
    assert apply(stack, heard(Service.ADMISSION, 12 * SECOND)) == [Quiesce(18_000)]


def test_a_second_signal_during_a_drain_kills_at_once() -> None:
    stack = serving(PATIENT)
    apply(stack, StopAsked(10 * SECOND))
    assert apply(stack, StopAsked(11 * SECOND)) == [Kill(service, "a second signal came") for service in START_ORDER]
    assert end_all(stack, START_ORDER, status=-9)[-1] == Over(1, "killed at the second signal")


def test_a_stop_during_a_pause_starts_nobody_any_more() -> None:
    stack = serving()
    die(stack, Service.EXECUTOR, 5 * SECOND)
    apply(stack, Exited(Service.EXECUTOR, -9, 6 * SECOND))
    assert stack.children[Service.EXECUTOR].phase is Phase.PAUSING
    stop(stack, 6 * SECOND)
    assert apply(stack, Ticked(9 * SECOND)) == []
    over = end_all(stack, [service for service in STOP_ORDER if service is not Service.EXECUTOR], 9 * SECOND)[-1]
    assert over == Over(0, "")


def test_a_child_that_fails_while_stopping_makes_the_stop_a_failure() -> None:
    stack = serving()
    stop(stack, 0)
    apply(stack, Exited(STOP_ORDER[0], 1, 0))
    over = end_all(stack, STOP_ORDER[1:])[-1]
    assert over == Over(1, "admission ended unexpectedly with exit status 1 while the stack was stopping")


def test_a_start_that_takes_too_long_names_those_that_are_not_ready() -> None:
    stack = begun()
    apply(stack, *(heard(service, 0) for service in START_ORDER if service is not Service.EXECUTOR))
    assert stack.wanted_ns() == 180 * SECOND
    assert apply(stack, Ticked(180 * SECOND)) == STOPPING
    over = end_all(stack, STOP_ORDER)[-1]
    assert isinstance(over, Over)
    assert over.exit_status == 1
    assert "not ready within 180 s: executor;" in over.cause


def test_nothing_is_timed_while_serving() -> None:
    assert serving().wanted_ns() is None


def test_readiness_that_goes_while_serving_changes_nothing() -> None:
    stack = serving()
    assert apply(stack, heard(Service.ADMISSION, 9 * SECOND, state=State.STARTING)) == []
    assert stack.course is Course.SERVING


@pytest.mark.parametrize(
    ("stack", "event"),
    [
        (begun(), Begun(1)),
        (begun(), Spawned(Service.GATEWAY, 7, 1)),
        (Stack(LIMITS), Spawned(Service.GATEWAY, 7, 1)),
        (Stack(LIMITS), Exited(Service.GATEWAY, 0, 1)),
        (Stack(LIMITS), heard(Service.GATEWAY, 1)),
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
