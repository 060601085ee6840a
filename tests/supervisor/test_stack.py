"""The supervisor's core: whom to start, stop and kill, and how it ends."""

import itertools
from collections.abc import Iterable

import msgspec
import pytest

from noria.proto.base import Service
from noria.proto.lifecycle import State
from noria.services.supervisor.core.child import ChildPhase
from noria.services.supervisor.core.events import (
    AnnounceReady,
    ChildAdopted,
    ChildExited,
    ChildSpawned,
    DrainIntake,
    ExitSupervisor,
    HeartbeatReceived,
    KillChild,
    RetireChild,
    SpawnChild,
    StackAction,
    StackEvent,
    StartRequested,
    StopRequested,
    TerminateChild,
    TimerTicked,
)
from noria.services.supervisor.core.exit_causes import describe_exit
from noria.services.supervisor.core.stack import Stack
from noria.services.supervisor.core.stack_phase import START_ORDER, STOP_ORDER, IllegalEvent, StackPhase
from noria.services.supervisor.core.supervision_limits import SupervisionLimits

SECOND = 1_000_000_000
LIMITS = SupervisionLimits(
    start_ns=180 * SECOND,
    stop_ns=10 * SECOND,
    drain_ns=0,
    hang_ns=15 * SECOND,
    pause_ns=SECOND // 2,
    pause_max_ns=3 * SECOND,
    deaths=5,
)
STOPPING = [DrainIntake(0), TerminateChild(STOP_ORDER[0])]
PATIENT = SupervisionLimits(180 * SECOND, 10 * SECOND, 20 * SECOND, 15 * SECOND, SECOND // 2, 3 * SECOND, 5)


def apply(stack: Stack, *events: StackEvent) -> list[StackAction]:
    actions: list[StackAction] = []
    for event in events:
        actions += stack.apply(event)
        stack.check()
    return actions


def heartbeat(
    service: Service,
    now_ns: int,
    progress: int = 0,
    *,
    busy: bool = False,
    state: State = State.READY,
    expected_us: int = 0,
    leaving_ns: int = 0,
) -> HeartbeatReceived:
    return HeartbeatReceived(service, state, progress, busy, expected_us, now_ns, leaving_ns)


def starting(limits: SupervisionLimits = LIMITS) -> Stack:
    stack = Stack(limits)
    actions = apply(stack, StartRequested(0))
    assert actions == [SpawnChild(service) for service in START_ORDER]
    apply(stack, *(ChildSpawned(service, 100 + index, 0) for index, service in enumerate(START_ORDER)))
    return stack


def serving(limits: SupervisionLimits = LIMITS) -> Stack:
    stack = starting(limits)
    actions = apply(stack, *(heartbeat(service, 4 * SECOND) for service in START_ORDER))
    assert actions == [AnnounceReady(4000)]
    return stack


def end_all(stack: Stack, services: Iterable[Service], now_ns: int = 0, status: int = 0) -> list[StackAction]:
    return apply(stack, *(ChildExited(service, status, now_ns) for service in services))


def others(service: Service) -> list[Service]:
    return [each for each in STOP_ORDER if each is not service]


def die_and_restart(stack: Stack, service: Service, now_ns: int, status: int = -9, last_output: str = "") -> int:
    """A death, and the start after it; returns how long the pause was."""
    actions = apply(stack, ChildExited(service, status, now_ns, last_output))
    restart_due_ns = now_ns
    if not actions:
        next_timer_ns = stack.next_timer_ns()
        assert next_timer_ns is not None
        assert apply(stack, TimerTicked(next_timer_ns - 1)) == []
        restart_due_ns = next_timer_ns
        actions = apply(stack, TimerTicked(restart_due_ns))
    assert actions == [SpawnChild(service)]
    apply(stack, ChildSpawned(service, 900, restart_due_ns))
    return restart_due_ns - now_ns


def test_the_executor_is_started_first_and_every_service_is_in_both_orders() -> None:
    everyone = {service for service in Service if service is not Service.SUPERVISOR}
    assert START_ORDER[0] is Service.EXECUTOR
    assert set(START_ORDER) == set(STOP_ORDER) == everyone
    assert STOP_ORDER[0] is Service.ADMISSION


def test_the_stack_serves_when_the_last_child_is_ready_and_not_before() -> None:
    stack = starting()
    assert apply(stack, *(heartbeat(service, SECOND) for service in START_ORDER[:-1])) == []
    assert apply(stack, heartbeat(START_ORDER[0], SECOND, state=State.STARTING)) == []
    assert apply(stack, heartbeat(START_ORDER[-1], 2 * SECOND)) == []
    assert apply(stack, heartbeat(START_ORDER[0], 3 * SECOND)) == [AnnounceReady(3000)]
    assert stack.phase is StackPhase.SERVING


def stop(stack: Stack, now_ns: int) -> list[StackAction]:
    """Ask for a stop of a stack that has nothing left to finish."""
    assert isinstance(apply(stack, StopRequested(now_ns))[0], DrainIntake)
    return apply(stack, heartbeat(Service.ADMISSION, now_ns, state=State.STOPPED))


def test_an_orderly_stop_asks_one_child_after_the_other_and_exits_0() -> None:
    stack = serving()
    assert stop(stack, 5 * SECOND) == [TerminateChild(STOP_ORDER[0])]
    for service, following in itertools.pairwise(STOP_ORDER):
        assert apply(stack, ChildExited(service, 0, 6 * SECOND)) == [TerminateChild(following)]
    assert apply(stack, ChildExited(STOP_ORDER[-1], 0, 7 * SECOND)) == [ExitSupervisor(0, "")]


def test_a_child_that_has_not_yet_caught_sigterm_ends_orderly_too() -> None:
    stack = starting()
    apply(stack, StopRequested(SECOND))
    assert end_all(stack, STOP_ORDER, status=-15)[-1] == ExitSupervisor(0, "")


def test_a_child_that_does_not_stop_in_time_is_killed_and_named() -> None:
    stack = serving()
    stop(stack, 0)
    assert stack.next_timer_ns() == 10 * SECOND
    assert apply(stack, TimerTicked(10 * SECOND - 1)) == []
    assert apply(stack, TimerTicked(10 * SECOND)) == [KillChild(STOP_ORDER[0], "did not stop within 10 s")]
    assert apply(stack, TimerTicked(11 * SECOND)) == []
    assert apply(stack, ChildExited(STOP_ORDER[0], -9, 12 * SECOND)) == [TerminateChild(STOP_ORDER[1])]
    over = end_all(stack, STOP_ORDER[1:], 12 * SECOND)[-1]
    assert over == ExitSupervisor(1, "admission did not stop within 10 s and was killed")


def test_a_second_request_to_stop_kills_all_that_live() -> None:
    stack = serving()
    stop(stack, 0)
    apply(stack, ChildExited(Service.GATEWAY, 0, 0))
    killed = apply(stack, StopRequested(1))
    why = "a second signal came"
    assert killed == [KillChild(service, why) for service in START_ORDER if service is not Service.GATEWAY]
    assert apply(stack, StopRequested(2)) == []
    assert end_all(stack, START_ORDER[:-1], status=-9)[-1] == ExitSupervisor(1, "killed at the second signal")


@pytest.mark.parametrize("victim", START_ORDER)
def test_a_death_while_serving_has_only_that_service_started_again_and_at_once(victim: Service) -> None:
    stack = serving()
    assert apply(stack, ChildExited(victim, -9, 5 * SECOND)) == [SpawnChild(victim)]
    assert stack.phase is StackPhase.SERVING
    assert [child.service for child in stack.children.values() if not child.alive] == [victim]


def test_deaths_in_a_row_lengthen_the_pause_up_to_its_maximum_and_then_everything_stops() -> None:
    stack = serving()
    pauses = [die_and_restart(stack, Service.EXECUTOR, second * SECOND) / SECOND for second in (5, 10, 15, 20)]
    assert pauses == [0, 0.5, 1, 2]
    first = apply(stack, ChildExited(Service.EXECUTOR, -11, 30 * SECOND, "one\ntwo"))
    assert first == STOPPING
    over = end_all(stack, [service for service in STOP_ORDER if service is not Service.EXECUTOR])[-1]
    assert over == ExitSupervisor(
        1,
        "executor died 5 times in a row without a step in between, the last time it died of SIGSEGV (signal 11); "
        "it said last:\n  one\n  two",
    )


def test_a_pause_has_a_maximum() -> None:
    stack = serving(SupervisionLimits(180 * SECOND, SECOND, 0, 15 * SECOND, SECOND, 3 * SECOND, 9))
    assert [die_and_restart(stack, Service.GATEWAY, second * SECOND) // SECOND for second in range(5, 85, 10)] == [
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
    apply(stack, heartbeat(service, from_ns), heartbeat(Service.SCHEDULER, until_ns, progress, busy=True))


@pytest.mark.parametrize(
    ("lived_s", "steps", "forgiven"), [(2.5, 7, True), (2.5, 0, False), (1.5, 7, False), (61, 0, True), (59, 0, False)]
)
def test_deaths_are_forgiven_once_a_step_was_made_in_a_settled_life_or_a_life_lasts(
    lived_s: float, steps: int, forgiven: bool
) -> None:
    stack = serving()
    die_and_restart(stack, Service.DETOKENIZER, 5 * SECOND)
    die_and_restart(stack, Service.DETOKENIZER, 6 * SECOND)
    now_ns = 10 * SECOND + int(lived_s * SECOND)
    live(stack, Service.DETOKENIZER, 10 * SECOND, now_ns, steps)
    apply(stack, *(heartbeat(service, now_ns, steps) for service in START_ORDER), TimerTicked(now_ns))
    assert stack.children[Service.DETOKENIZER].deaths == (0 if forgiven else 2)


def test_an_orderly_end_that_somebody_asked_for_is_no_death() -> None:
    stack = serving()
    for second in range(10, 30):
        assert apply(stack, ChildExited(Service.ADMISSION, 0, second * SECOND)) == [SpawnChild(Service.ADMISSION)]
        apply(
            stack,
            ChildSpawned(Service.ADMISSION, 900 + second, second * SECOND),
            heartbeat(Service.ADMISSION, second * SECOND),
        )
    assert stack.children[Service.ADMISSION].deaths == 0


def test_a_child_that_leaves_at_once_again_and_again_is_given_up_though_it_says_nothing_is_wrong() -> None:
    stack = serving()
    apply(stack, ChildExited(Service.ADMISSION, 0, 5 * SECOND), ChildSpawned(Service.ADMISSION, 900, 5 * SECOND))
    for second in (6, 7, 9, 12):
        die_and_restart(stack, Service.ADMISSION, second * SECOND, status=0)
    assert apply(stack, ChildExited(Service.ADMISSION, 0, 20 * SECOND)) == [
        DrainIntake(0),
        TerminateChild(STOP_ORDER[1]),
    ]


def test_a_mistake_of_the_user_at_the_first_start_is_not_tried_again() -> None:
    stack = starting()
    apply(stack, ChildExited(Service.GATEWAY, 2, SECOND))
    over = end_all(stack, others(Service.GATEWAY))[-1]
    assert over == ExitSupervisor(2, "gateway could not start, it says why above")


@pytest.mark.parametrize(("status", "expected_words"), [(1, "exit status 1"), (0, "exit status 0"), (-11, "SIGSEGV")])
def test_a_child_that_never_became_ready_is_given_up_sooner(status: int, expected_words: str) -> None:
    stack = starting()
    assert die_and_restart(stack, Service.GATEWAY, SECOND, status) == 0
    assert die_and_restart(stack, Service.GATEWAY, 2 * SECOND, status) == SECOND // 2
    apply(stack, ChildExited(Service.GATEWAY, status, 4 * SECOND))
    over = end_all(stack, others(Service.GATEWAY))[-1]
    assert isinstance(over, ExitSupervisor)
    assert over.exit_status == 1
    assert over.cause.startswith("gateway died 3 times")
    assert expected_words in over.cause


def test_exit_status_2_of_one_that_was_ready_before_is_a_death_like_others() -> None:
    stack = serving()
    assert die_and_restart(stack, Service.GATEWAY, 5 * SECOND, 2) == 0
    assert die_and_restart(stack, Service.GATEWAY, 6 * SECOND, 2) == SECOND // 2


def test_the_first_cause_counts_and_not_what_follows_from_it() -> None:
    stack = starting()
    apply(
        stack,
        ChildExited(Service.EXECUTOR, 2, 0),
        ChildExited(Service.SCHEDULER, 1, 0),
        ChildExited(Service.GATEWAY, 1, 0),
    )
    over = end_all(stack, (Service.ADMISSION, Service.DETOKENIZER))[-1]
    assert isinstance(over, ExitSupervisor)
    assert over.cause.startswith("executor")


def beat(stack: Stack, seconds: Iterable[int], silent: Service | None = None) -> list[StackAction]:
    """Everyone but one is heard of each second, working, and time passes."""
    actions: list[StackAction] = []
    for second in seconds:
        alive = [child.service for child in stack.children.values() if child.alive and child.service is not silent]
        actions += apply(stack, *(heartbeat(service, second * SECOND, second, busy=True) for service in alive))
        actions += apply(stack, TimerTicked(second * SECOND))
    return actions


@pytest.mark.parametrize("victim", START_ORDER)
def test_a_child_that_falls_silent_is_killed_and_started_again(victim: Service) -> None:
    stack = serving(msgspec.structs.replace(LIMITS, hang_ns=10 * SECOND))
    assert beat(stack, range(5, 15), victim) == []
    assert beat(stack, [15], victim) == [KillChild(victim, "gave no sign of life for 11 s")]
    assert beat(stack, [16], victim) == []
    assert apply(stack, ChildExited(victim, -9, 17 * SECOND)) == [SpawnChild(victim)]
    assert stack.children[victim].deaths == 1


def test_what_was_not_heard_while_the_supervisor_itself_stood_still_says_nothing() -> None:
    stack = serving()
    assert beat(stack, [5, 6]) == []
    assert apply(stack, TimerTicked(100 * SECOND)) == []
    assert apply(stack, TimerTicked(101 * SECOND)) == []


@pytest.mark.parametrize(("expected_us", "after_s"), [(0, 15), (1_000_000, 15), (3_000_000, 30)])
def test_an_executor_whose_step_does_not_end_is_killed_after_ten_times_its_prediction(
    expected_us: int, after_s: int
) -> None:
    stack = serving()
    killed_s = 0
    for second in range(5, 60):
        step = heartbeat(Service.EXECUTOR, second * SECOND, 7, busy=True, expected_us=expected_us)
        others = [heartbeat(service, second * SECOND, 7, busy=True) for service in START_ORDER[1:]]
        if apply(stack, step, *others, TimerTicked(second * SECOND)):
            killed_s = second
            break
    assert killed_s == 5 + after_s + 1
    assert "no progress" in stack.children[Service.EXECUTOR].hang


def test_an_executor_that_has_nothing_to_do_or_still_loads_is_well() -> None:
    stack = serving()
    for second in range(5, 100):
        idle = heartbeat(Service.EXECUTOR, second * SECOND, 7, busy=False)
        assert (
            apply(
                stack,
                idle,
                *(heartbeat(each, second * SECOND) for each in START_ORDER[1:]),
                TimerTicked(second * SECOND),
            )
            == []
        )
    die_and_restart(stack, Service.EXECUTOR, 100 * SECOND)
    for second in range(101, 200):
        loads = heartbeat(Service.EXECUTOR, second * SECOND, busy=True, state=State.STARTING)
        assert (
            apply(
                stack,
                loads,
                *(heartbeat(each, second * SECOND) for each in START_ORDER[1:]),
                TimerTicked(second * SECOND),
            )
            == []
        )


def test_a_child_that_does_not_become_ready_again_in_time_is_killed() -> None:
    stack = serving()
    die_and_restart(stack, Service.EXECUTOR, 5 * SECOND)
    for second in range(6, 185):
        assert (
            apply(stack, *(heartbeat(each, second * SECOND) for each in START_ORDER[1:]), TimerTicked(second * SECOND))
            == []
        )
    apply(stack, *(heartbeat(each, 186 * SECOND) for each in START_ORDER[1:]))
    assert apply(stack, TimerTicked(186 * SECOND)) == [KillChild(Service.EXECUTOR, "was not ready within 180 s")]


def test_services_of_an_earlier_supervisor_are_kept_and_only_the_others_started() -> None:
    stack = Stack(LIMITS)
    adopted = (Service.SCHEDULER, Service.GATEWAY)
    apply(stack, *(ChildAdopted(service, 50, 0) for service in adopted))
    assert apply(stack, StartRequested(0)) == [SpawnChild(service) for service in START_ORDER if service not in adopted]
    started = [service for service in START_ORDER if service not in adopted]
    apply(stack, *(ChildSpawned(service, 60, 0) for service in started))
    assert apply(stack, *(heartbeat(service, SECOND) for service in START_ORDER)) == [AnnounceReady(1000)]
    assert apply(stack, ChildExited(Service.SCHEDULER, None, 2 * SECOND)) == [SpawnChild(Service.SCHEDULER)]


def test_a_twin_whose_place_is_taken_gives_way_to_who_has_it() -> None:
    stack = starting()
    apply(stack, ChildAdopted(Service.EXECUTOR, 42, SECOND))
    assert stack.children[Service.EXECUTOR].pid == 42
    assert apply(stack, *(heartbeat(service, 2 * SECOND) for service in START_ORDER)) == [AnnounceReady(2000)]


def test_a_gateway_that_gave_up_its_place_finishes_apart_from_its_successor() -> None:
    stack = serving()
    left = apply(stack, heartbeat(Service.GATEWAY, 5 * SECOND, state=State.STOPPED))
    assert left == [RetireChild(Service.GATEWAY), SpawnChild(Service.GATEWAY)]
    apply(stack, ChildSpawned(Service.GATEWAY, 900, 5 * SECOND))
    assert stack.children[Service.GATEWAY].deaths == 0


@pytest.mark.parametrize("state", [State.DRAINING, State.STOPPED])
def test_one_that_its_last_supervisor_had_drained_is_replaced(state: State) -> None:
    stack = serving()
    assert apply(stack, heartbeat(Service.ADMISSION, 5 * SECOND, state=state)) == [TerminateChild(Service.ADMISSION)]
    assert apply(stack, heartbeat(Service.ADMISSION, 6 * SECOND, state=state)) == []
    assert apply(stack, ChildExited(Service.ADMISSION, 0, 7 * SECOND)) == [SpawnChild(Service.ADMISSION)]


def test_a_stop_first_lets_what_runs_finish() -> None:
    stack = serving(PATIENT)
    assert apply(stack, StopRequested(10 * SECOND)) == [DrainIntake(20_000)]
    assert stack.phase is StackPhase.DRAINING
    assert apply(stack, heartbeat(Service.ADMISSION, 11 * SECOND, state=State.DRAINING)) == []
    assert apply(stack, heartbeat(Service.ADMISSION, 12 * SECOND, state=State.STOPPED)) == STOPPING[1:]
    assert end_all(stack, STOP_ORDER, 13 * SECOND)[-1] == ExitSupervisor(0, "")


def test_a_drain_has_an_end_even_when_nobody_says_that_it_is_done() -> None:
    stack = serving(PATIENT)
    apply(stack, StopRequested(10 * SECOND))
    assert stack.next_timer_ns() == 32 * SECOND
    for second in range(11, 32):
        drains = heartbeat(Service.ADMISSION, second * SECOND, state=State.DRAINING)
        others = [heartbeat(each, second * SECOND) for each in START_ORDER if each is not Service.ADMISSION]
        assert apply(stack, drains, *others, TimerTicked(second * SECOND)) == []
    assert apply(stack, TimerTicked(32 * SECOND)) == STOPPING[1:]


@pytest.mark.parametrize("door", [Service.ADMISSION, Service.GATEWAY])
def test_who_dies_during_a_drain_is_started_again_and_told(door: Service) -> None:
    stack = serving(PATIENT)
    apply(stack, StopRequested(10 * SECOND))
    assert apply(stack, ChildExited(door, -9, 11 * SECOND)) == [SpawnChild(door)]
    apply(stack, ChildSpawned(door, 77, 11 * SECOND))
    assert apply(stack, heartbeat(door, 12 * SECOND)) == [DrainIntake(18_000)]
    assert apply(stack, heartbeat(door, 13 * SECOND, state=State.DRAINING)) == []


def test_one_that_says_that_it_ends_may_be_silent_for_as_long_as_it_says() -> None:
    stack = serving()
    others = [each for each in START_ORDER if each is not Service.SCHEDULER]
    apply(stack, heartbeat(Service.SCHEDULER, 5 * SECOND, leaving_ns=40 * SECOND))
    for second in range(6, 46):
        beats = (heartbeat(each, second * SECOND) for each in others)
        assert apply(stack, *beats, TimerTicked(second * SECOND)) == []
    assert [type(each) for each in apply(stack, TimerTicked(46 * SECOND))] == [KillChild]
    assert apply(stack, ChildExited(Service.SCHEDULER, -9, 47 * SECOND)) == [SpawnChild(Service.SCHEDULER)]
    assert stack.children[Service.SCHEDULER].deaths == 1


def test_one_that_ends_in_the_time_it_says_has_not_died() -> None:
    stack = serving()
    apply(stack, heartbeat(Service.SCHEDULER, 5 * SECOND, leaving_ns=40 * SECOND))
    assert apply(stack, ChildExited(Service.SCHEDULER, 0, 44 * SECOND)) == [SpawnChild(Service.SCHEDULER)]
    assert stack.children[Service.SCHEDULER].deaths == 0


def test_a_stop_waits_for_one_that_says_that_it_takes_longer() -> None:
    stack = serving()
    stop(stack, 10 * SECOND)
    first = STOP_ORDER[0]
    apply(stack, heartbeat(first, 11 * SECOND, state=State.DRAINING, leaving_ns=30 * SECOND))
    assert apply(stack, TimerTicked(40 * SECOND)) == []
    assert apply(stack, TimerTicked(41 * SECOND)) == [KillChild(first, "did not stop within 31 s")]


def test_a_second_signal_during_a_drain_kills_at_once() -> None:
    stack = serving(PATIENT)
    apply(stack, StopRequested(10 * SECOND))
    assert apply(stack, StopRequested(11 * SECOND)) == [
        KillChild(service, "a second signal came") for service in START_ORDER
    ]
    assert end_all(stack, START_ORDER, status=-9)[-1] == ExitSupervisor(1, "killed at the second signal")


def test_a_stop_during_a_pause_starts_nobody_any_more() -> None:
    stack = serving()
    die_and_restart(stack, Service.EXECUTOR, 5 * SECOND)
    apply(stack, ChildExited(Service.EXECUTOR, -9, 6 * SECOND))
    assert stack.children[Service.EXECUTOR].phase is ChildPhase.PAUSING
    stop(stack, 6 * SECOND)
    assert apply(stack, TimerTicked(9 * SECOND)) == []
    over = end_all(stack, [service for service in STOP_ORDER if service is not Service.EXECUTOR], 9 * SECOND)[-1]
    assert over == ExitSupervisor(0, "")


def test_a_child_that_fails_while_stopping_makes_the_stop_a_failure() -> None:
    stack = serving()
    stop(stack, 0)
    apply(stack, ChildExited(STOP_ORDER[0], 1, 0))
    over = end_all(stack, STOP_ORDER[1:])[-1]
    assert over == ExitSupervisor(1, "admission ended unexpectedly with exit status 1 while the stack was stopping")


def test_a_start_that_takes_too_long_names_those_that_are_not_ready() -> None:
    stack = starting()
    apply(stack, *(heartbeat(service, 0) for service in START_ORDER if service is not Service.EXECUTOR))
    assert stack.next_timer_ns() == 180 * SECOND
    assert apply(stack, TimerTicked(180 * SECOND)) == STOPPING
    over = end_all(stack, STOP_ORDER)[-1]
    assert isinstance(over, ExitSupervisor)
    assert over.exit_status == 1
    assert "not ready within 180 s: executor;" in over.cause


def test_nothing_is_timed_while_serving() -> None:
    assert serving().next_timer_ns() is None


def test_readiness_that_goes_while_serving_changes_nothing() -> None:
    stack = serving()
    assert apply(stack, heartbeat(Service.ADMISSION, 9 * SECOND, state=State.STARTING)) == []
    assert stack.phase is StackPhase.SERVING


@pytest.mark.parametrize(
    ("stack", "event"),
    [
        (starting(), StartRequested(1)),
        (starting(), ChildSpawned(Service.GATEWAY, 7, 1)),
        (Stack(LIMITS), ChildSpawned(Service.GATEWAY, 7, 1)),
        (Stack(LIMITS), ChildExited(Service.GATEWAY, 0, 1)),
        (Stack(LIMITS), heartbeat(Service.GATEWAY, 1)),
    ],
)
def test_an_event_that_cannot_happen_raises_and_changes_nothing(stack: Stack, event: StackEvent) -> None:
    def seen() -> list[object]:
        return [stack.phase, *((child.phase, child.pid) for child in stack.children.values())]

    before = seen()
    with pytest.raises(IllegalEvent):
        stack.apply(event)
    assert seen() == before
    stack.check()


def test_a_death_by_memory_is_hinted_at() -> None:
    assert "memory" in describe_exit(-9)
    assert "signal 42" in describe_exit(-42)
