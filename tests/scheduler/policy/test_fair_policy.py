"""Classes and tenants: who is charged what, whose turn it is, who gives way, and what is kept for whom."""

import itertools

import pytest
from fakes.desk import Desk, ending_after, generated, stream, submission
from fakes.executor import geometry
from msgspec.structs import replace

from noria.proto.execution import Failure, Geometry, StepPlan
from noria.proto.scheduling import Submission, Withdraw
from noria.services.scheduler.core.interface.events import ExecutorLost, PolicyChanged
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, ServicePrices, TrafficClass
from noria.services.scheduler.core.state.step_decisions import WaitReason

CLASSES = (
    TrafficClass("interactive", rank=2, weight=4.0, reserved_slots=1, preemptible=False),
    TrafficClass("standard", rank=1),
    TrafficClass("batch", rank=0, quantum_tokens=20),
    TrafficClass("admin", rank=3, reserved_slots=1, reserved_cache=0.2, preemptible=False, isolated=True),
)


def desk_of(
    classes: tuple[TrafficClass, ...] = CLASSES,
    shape: Geometry | None = None,
    *,
    slots: int = 4,
    tokens: int = 64,
    steps: int = 1,
    progress: int = 4,
    prices: ServicePrices | None = None,
    margin: float | None = None,
) -> Desk:
    """A core with classes."""
    rules = FairRules(classes=classes, prices=prices or ServicePrices(1.0, 0.25, 2.0), progress_tokens=progress)
    settings = CoreSettings(
        policy="fair",
        rules=rules,
        max_requests_per_batch=slots,
        max_batch_tokens=tokens,
        steps_in_flight=steps,
        safety_margin=margin,
    )
    return Desk(settings, shape or geometry(num_blocks=256, max_slots=16))


def of(traffic_class: str, each: Submission, tenant: str = "t") -> Submission:
    """A submission of a class."""
    return replace(each, traffic_class=traffic_class, tenant=tenant, salt=tenant.encode())


def charged(desk: Desk, tenant: str = "t") -> float:
    """What a tenant was charged, in all classes."""
    return sum(each.charged for each in desk.core.state.policy.standings() if each.tenant == tenant)


def in_slots(desk: Desk) -> list[int]:
    """The numbers of the requests that hold a slot."""
    board = desk.core.state
    return sorted(each.stream.request for each in (*board.prefilling, *board.decoding))


def steps(desk: Desk, count: int) -> list[StepPlan]:
    """So many steps one after another."""
    plans = []
    for _ in range(count):
        plans.append(desk.planned())
        desk.done()
    return plans


def counts(desk: Desk) -> tuple[int, int]:
    """Resets and recomputed tokens."""
    return desk.core.state.counters.resets, desk.core.state.counters.recomputed_tokens


# What is charged.


def test_prompts_and_output_are_charged_by_price_each_token_once() -> None:
    desk = desk_of(tokens=5)
    desk.submit(of("standard", submission(1, prompt=13, output=6)))
    desk.run()
    assert charged(desk) == 13 * 1.0 + 6 * 2.0


def test_what_is_found_in_the_cache_has_its_own_price() -> None:
    desk = desk_of()
    first = of("standard", submission(1, prompt=13, output=1))
    desk.submit(first)
    desk.run()
    before = charged(desk)
    desk.submit(replace(first, stream=stream(2)))
    desk.run()
    assert charged(desk) - before == 12 * 0.25 + 1 * 1.0 + 1 * 2.0


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_what_is_computed_again_costs_nothing(lost: bool, steps_in_flight: int) -> None:
    desk = desk_of(tokens=5, steps=steps_in_flight)
    desk.submit(of("standard", submission(1, prompt=13, output=6)))
    for _ in range(4):
        desk.planned()
        if len(desk.executor.queued) == steps_in_flight:
            desk.done()
    desk.plan()
    if lost:
        desk.executor = type(desk.executor)(desk.executor.geometry)
        desk.tell(ExecutorLost())
        desk.tell(desk.executor.geometry)
    else:
        desk.tell(desk.executor.fail(Failure.ERROR))
    desk.run()
    assert desk.core.state.counters.recomputed_tokens > 0
    assert charged(desk) == 13 * 1.0 + 6 * 2.0


def test_a_slice_that_is_discarded_is_paid_back() -> None:
    desk = desk_of(steps=2)
    each = of("standard", ending_after(2, 3))
    desk.submit(each)
    desk.run()
    assert desk.core.state.counters.discarded_slices == 1
    assert charged(desk) == 4 * 1.0 + 3 * 2.0


def test_the_part_of_a_prompt_that_was_in_flight_when_it_was_withdrawn_is_paid_back() -> None:
    desk = desk_of(tokens=5, steps=2)
    desk.submit(of("standard", submission(1, prompt=30)))
    desk.planned()
    desk.done()
    desk.planned()
    desk.planned()
    assert charged(desk) == 15
    desk.tell(Withdraw((stream(1),)))
    desk.run()
    assert charged(desk) == 5


def test_who_is_submitted_again_brings_its_service_and_pays_nothing_twice() -> None:
    desk = desk_of()
    each = of("standard", submission(1, prompt=13, output=6))
    desk.submit(replace(each, output_ids=tuple(generated(each)[:2]), service=17.0), of("standard", submission(2), "u"))
    assert (charged(desk), charged(desk, "u")) == (17.0, 0.0)
    desk.run()
    assert charged(desk) == 17.0 + 4 * 2.0


# Whose turn it is.


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    desk = desk_of(slots=1)
    desk.submit(*(of("standard", submission(number, output=2), "many") for number in range(1, 9)))
    desk.submit(*(of("standard", submission(number, output=2), "few") for number in (20, 21)))
    desk.run()
    assert [plan.fill[0].stream.request for plan in desk.plans if plan.fill][:5] == [20, 1, 21, 2, 3]


def test_service_follows_weights() -> None:
    desk = desk_of((TrafficClass("gold", weight=3.0), TrafficClass("iron", weight=1.0)), slots=2)
    for name, first in (("gold", 100), ("iron", 200)):
        desk.submit(*(of(name, submission(first + number, output=4)) for number in range(40)))
    steps(desk, 80)
    gold, iron = (each.charged for each in desk.core.state.policy.standings())
    assert gold / iron == pytest.approx(3.0, rel=0.15)


def test_several_prompts_share_a_step_and_none_has_more_than_half_while_others_wait() -> None:
    desk = desk_of(tokens=16)
    desk.submit(of("standard", submission(1, prompt=60), "one"), of("standard", submission(2, prompt=60), "other"))
    for _ in range(3):
        assert desk.lengths(desk.planned()) == {1: 8, 2: 8}
        desk.done()


def test_a_prompt_of_a_higher_class_is_not_capped_for_lower_ones() -> None:
    desk = desk_of(tokens=16)
    desk.submit(of("batch", submission(1, prompt=60)))
    steps(desk, 2)
    desk.submit(of("interactive", submission(2, prompt=16)))
    assert desk.lengths(desk.planned()) == {2: 16}
    desk.done()
    assert desk.lengths(desk.planned()) == {1: 15, 2: 1}


def test_a_short_prompt_passes_a_long_one_and_the_rest_of_the_step_is_not_wasted() -> None:
    desk = desk_of(tokens=16)
    desk.submit(of("standard", submission(1, prompt=60), "one"))
    assert desk.lengths(desk.planned()) == {1: 16}
    desk.done()
    desk.submit(of("standard", submission(2, prompt=3), "other"))
    assert desk.lengths(desk.planned()) == {1: 13, 2: 3}


def test_when_tokens_do_not_suffice_for_all_sequences_these_take_turns_too() -> None:
    desk = desk_of(slots=4, tokens=16)
    desk.submit(*(of("standard", submission(number, output=60), "many") for number in (1, 2, 3)))
    desk.submit(of("standard", submission(4, output=60), "few"))
    steps(desk, 2)
    desk.core._planner.token_limit = 2
    before = (charged(desk, "many"), charged(desk, "few"))
    desk.submit(of("standard", submission(5), "few"))
    steps(desk, 12)
    assert charged(desk, "many") - before[0] == pytest.approx(charged(desk, "few") - before[1], abs=4)


def test_those_who_begin_alike_go_together_and_others_are_not_forgotten() -> None:
    desk = desk_of(slots=1)
    for number in range(30):
        prompt = (1 + number % 2, *(1 + each % 31 for each in range(70)), 1 + number)
        desk.submit(of("standard", replace(submission(number, output=1), prompt_ids=prompt)))
    desk.run()
    kinds = [plan.fill[0].prompt_ids[0] for plan in desk.plans if plan.fill]
    assert sum(one != other for one, other in itertools.pairwise(kinds)) <= 5
    assert kinds[:9].count(2) == 1, "after a row the oldest goes"


def test_nobody_waits_for_the_prefix_of_a_lower_class() -> None:
    desk = desk_of(tokens=8)
    slow = of("batch", submission(1, prompt=60, output=1))
    desk.submit(slow)
    desk.planned()
    desk.submit(replace(of("interactive", submission(2)), prompt_ids=(*slow.prompt_ids[:40], 30)))
    desk.done()
    assert 2 in desk.lengths(desk.planned())


# Reserved slots, priority and quanta.


def test_reserved_slots_are_used_by_others_until_they_are_wanted_and_come_back_in_the_next_plan() -> None:
    desk = desk_of()
    desk.submit(*(of("batch", submission(number, output=60)) for number in range(1, 9)))
    steps(desk, 3)
    assert in_slots(desk) == [1, 2, 3], "one slot is the admin's alone"
    desk.submit(of("interactive", submission(10, output=9)))
    assert desk.lengths(desk.planned())[10] == 4
    assert in_slots(desk) == [1, 2, 10], "the newest gave way"


def test_priority_takes_slots_from_lower_ranks_beyond_what_is_reserved() -> None:
    desk = desk_of()
    desk.submit(*(of("batch", submission(number, output=60)) for number in range(1, 9)))
    steps(desk, 3)
    desk.submit(*(of("interactive", submission(number, output=9)) for number in (10, 11)))
    steps(desk, 2)
    assert in_slots(desk) == [1, 10, 11]


def test_classes_are_compared_by_rank_alone_and_nothing_is_taken_back() -> None:
    desk = desk_of((TrafficClass("one"), TrafficClass("other", weight=100.0)), slots=2)
    desk.submit(*(of("one", submission(number, output=30)) for number in (1, 2)))
    steps(desk, 3)
    desk.submit(*(of("other", submission(number, output=30, seniority_ms=1000)) for number in (3, 4)))
    desk.run()
    assert counts(desk) == (0, 0)


def test_a_request_that_was_pushed_aside_makes_progress_before_it_is_again() -> None:
    desk = desk_of(slots=3, progress=7)
    batch = of("batch", submission(1, output=60))
    desk.submit(batch, of("batch", submission(2, output=60)))
    steps(desk, 2)
    for number in range(10, 60):
        desk.submit(of("interactive", submission(number, output=3)), of("interactive", submission(100 + number)))
        steps(desk, 5)
    outputs = [each.output_tokens for number in (1, 2) for each in desk.moves(number) if each.decision == "reset"]
    assert len(outputs) > 2
    for number in (1, 2):
        marks = [each.output_tokens for each in desk.moves(number) if each.decision == "reset"]
        assert all(later - earlier >= 7 for earlier, later in itertools.pairwise(marks))


def test_what_cannot_be_pushed_aside_stays_out_of_what_others_have_reserved() -> None:
    classes = (TrafficClass("one", reserved_slots=2), TrafficClass("firm", preemptible=False))
    desk = desk_of(classes, slots=4)
    desk.submit(*(of("firm", submission(number, output=30)) for number in range(1, 9)))
    steps(desk, 2)
    assert in_slots(desk) == [1, 2]
    desk.submit(of("one", submission(10)), of("one", submission(11)))
    assert {10, 11} <= desk.lengths(desk.planned()).keys()
    assert counts(desk) == (0, 0)


def test_after_its_quantum_a_request_lets_others_of_its_class_go_first_and_comes_back() -> None:
    desk = desk_of((TrafficClass("batch", quantum_tokens=10),), slots=1)
    endless, other = of("batch", submission(1, output=40)), of("batch", submission(2, output=3))
    desk.submit(endless)
    steps(desk, 5)
    desk.submit(other, of("batch", submission(3, output=3)))
    desk.run()
    ends = [each.stream.request for each in desk.replies if getattr(each, "end", 0)]
    assert ends == [2, 3, 1]
    assert (desk.output(1), desk.output(2)) == (generated(endless), generated(other))
    moved = [each.output_tokens for each in desk.moves(1) if each.decision == "reset"]
    assert moved == [10]


def test_without_others_a_quantum_means_nothing() -> None:
    desk = desk_of((TrafficClass("batch", quantum_tokens=10), TrafficClass("low", rank=-1)), slots=1)
    desk.submit(of("batch", submission(1, output=40)))
    steps(desk, 3)
    desk.submit(of("low", submission(2)))
    desk.run()
    assert counts(desk) == (0, 0)


# The cache.


def test_priority_takes_blocks_from_lower_ranks() -> None:
    shape = geometry(num_blocks=22, page_size=4, max_slots=16)
    desk = desk_of((TrafficClass("interactive", rank=2), TrafficClass("batch", rank=0)), shape)
    desk.submit(*(of("batch", submission(number, prompt=24, output=10)) for number in (1, 2)))
    steps(desk, 2)
    urgent = of("interactive", submission(10, prompt=40, output=3))
    desk.submit(urgent)
    steps(desk, 2)
    assert in_slots(desk) == [1, 10]
    desk.run()
    assert desk.output(10) == generated(urgent)


def test_a_reserved_share_of_the_cache_comes_back_from_whoever_uses_it() -> None:
    shape = geometry(num_blocks=22, page_size=4, max_slots=16)
    classes = (TrafficClass("owner", rank=0, reserved_cache=0.5), TrafficClass("guest", rank=1))
    desk = desk_of(classes, shape)
    desk.submit(*(of("guest", submission(number, prompt=30, output=6)) for number in (1, 2)))
    steps(desk, 2)
    desk.submit(of("owner", submission(10, prompt=30, output=3)))
    steps(desk, 3)
    assert 10 in in_slots(desk)
    assert desk.core.state.counters.resets == 1


def test_a_long_prompt_that_waits_for_blocks_is_passed_by_higher_ranks_for_a_while_only() -> None:
    shape = geometry(num_blocks=32, page_size=4, max_slots=16)
    classes = (TrafficClass("interactive", rank=2, weight=4.0), TrafficClass("batch", rank=0, preemptible=False))
    desk = desk_of(classes, shape, slots=8, tokens=32)
    desk.submit(of("batch", submission(1, prompt=80, output=3)))
    desk.planned()
    desk.submit(of("batch", submission(2, prompt=90, output=3), "u"))
    desk.done()
    for number in range(10, 200):
        desk.submit(of("interactive", submission(number, prompt=6, output=8)))
        if desk.plan() is not None:
            desk.done()
        if desk.output(2):
            break
    assert desk.output(2), "it is starved"
    assert number > 12, "others passed it while it waited"


# Isolated pools.


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("tokens", [4, 64])
@pytest.mark.parametrize("page_size", [1, 4])
def test_an_admin_request_is_in_the_first_plan_after_its_arrival_when_all_else_is_full(
    steps_in_flight: int, tokens: int, page_size: int
) -> None:
    shape = geometry(num_blocks=120 // page_size + 2, page_size=page_size, max_slots=16)
    desk = desk_of(shape=shape, slots=6, tokens=tokens, steps=steps_in_flight)
    names = ("interactive", "standard", "batch")
    desk.submit(*(of(names[number % 3], submission(number, prompt=20, output=20)) for number in range(1, 40)))
    for moment in range(1, 60):
        while desk.plan() is not None:
            pass
        if desk.executor.queued:
            desk.done()
        if moment % 6:
            continue
        admin = of("admin", submission(100 + moment, prompt=12, output=2))
        desk.submit(admin)
        assert 100 + moment in desk.lengths(desk.planned())
        for _ in range(30):
            if desk.end(100 + moment):
                break
            desk.done()
            desk.plan()
        assert desk.output(100 + moment) == generated(admin)
        desk.done()
    desk.run()
    assert all(len(desk.output(number)) == 20 for number in range(1, 40))


def test_what_is_kept_for_an_isolated_pool_is_not_counted_for_the_promises_to_others() -> None:
    shape = geometry(num_blocks=42, page_size=1, max_slots=16)
    desk = desk_of(shape=shape, slots=6, tokens=3, margin=0.0)
    desk.submit(of("standard", submission(1, prompt=4, output=34)))
    steps(desk, 2)
    desk.submit(of("standard", submission(2, prompt=20, output=4)))
    for moment in range(1, 30):
        desk.submit(of("admin", submission(100 + moment, prompt=6, output=1)))
        assert 100 + moment in desk.lengths(desk.planned())
        desk.done()
        while not desk.end(100 + moment):
            desk.planned()
            desk.done()


def test_an_isolated_pool_takes_no_slots_of_others() -> None:
    desk = desk_of()
    desk.submit(*(of("admin", submission(number, output=9)) for number in range(1, 4)))
    steps(desk, 2)
    assert in_slots(desk) == [1]


# The budget of a step.


def test_the_step_is_as_long_as_the_running_requests_latency_target_allows() -> None:
    classes = (TrafficClass("interactive", rank=2, itl_target_ms=40.0), TrafficClass("batch", rank=0))
    desk = desk_of(classes, geometry(num_blocks=900, max_slots=16, max_batch_tokens=512), tokens=512)

    def step() -> StepPlan:
        plan = desk.planned()
        desk.tell(replace(desk.result(), compute_us=1000 + 100 * sum(each.length for each in plan.slices)))
        return plan

    for number in range(200, 212):  # short steps and long ones: the model learns what a token takes
        desk.submit(of("batch", submission(number, prompt=number % 200 * 20 + 5, output=2)))
        step()
        step()
    desk.submit(*(of("batch", submission(number, prompt=250, output=2)) for number in range(1, 20)))
    for _ in range(6):
        plan = step()
    assert sum(each.length for each in plan.slices) > 500
    desk.submit(of("interactive", submission(100, prompt=5, output=30)))
    step()
    plan = step()
    assert 200 <= sum(each.length for each in plan.slices) <= 390


# Twins.


def prefixed(number: int, prompt: int = 40) -> Submission:
    """A stream of one long prompt, the same for every number."""
    return replace(submission(number, output=2), prompt_ids=tuple(1 + each % 31 for each in range(prompt)))


@pytest.mark.parametrize(("first", "waits"), [("batch", False), ("standard", True)])
def test_nobody_waits_for_a_twin_of_a_lower_class_that_is_still_computing(first: str, waits: bool) -> None:
    desk = desk_of(tokens=8)
    desk.submit(of(first, prefixed(1)))
    steps(desk, 1)
    desk.submit(of("standard", prefixed(2)))
    plan = desk.planned()
    assert (2 in desk.lengths(plan)) is not waits
    assert desk.passed_over == waits
    desk.done()
    desk.run()
    assert desk.output(2) == generated(prefixed(2))
    assert desk.output(1) == generated(prefixed(1))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_ends_while_its_twin_of_a_class_with_hardly_any_share_stands_still(rank: int) -> None:
    classes = (TrafficClass("interactive", rank=1, weight=100.0), TrafficClass("batch", rank=rank, weight=0.01))
    desk = desk_of(classes, tokens=8)
    desk.submit(of("batch", prefixed(1)))
    steps(desk, 1)
    desk.submit(
        of("interactive", prefixed(2)), *(of("interactive", submission(each, 30, 8), "o") for each in range(3, 9))
    )
    for _ in range(100):
        desk.planned()
        desk.done()
        if desk.end(2):
            break
    assert desk.output(2) == generated(prefixed(2))
    assert desk.end(1) is None
    desk.run()
    assert desk.output(1) == generated(prefixed(1))


def test_who_waits_for_a_twin_that_a_new_policy_puts_into_a_lower_class_waits_no_longer() -> None:
    desk = Desk(CoreSettings(policy="fifo", max_batch_tokens=64, steps_in_flight=1))
    desk.submit(of("batch", prefixed(1)), of("standard", prefixed(2)))
    desk.planned()
    assert desk.passed_over == 1
    desk.tell(PolicyChanged("fair", FairRules(classes=CLASSES)))
    assert desk.passed_over == 0
    desk.done()
    desk.run()
    assert desk.output(2) == generated(prefixed(2))


# The rules change.


def test_new_rules_lose_nobody_and_count_from_then_on() -> None:
    desk = desk_of(tokens=16)
    asked = [
        of(name, submission(10 * place + number, prompt=9, output=6))
        for place, name in enumerate(("interactive", "standard", "batch", "admin"))
        for number in range(5)
    ]
    desk.submit(*asked)
    for policy, rules in (
        ("fair", FairRules(classes=CLASSES[:2])),
        ("fifo", FairRules()),
        ("prefill_first", FairRules()),
        ("fair", FairRules(classes=CLASSES, tenants={"t": 3.0})),
    ):
        steps(desk, 3)
        desk.tell(PolicyChanged(policy, rules))
        assert desk.core.state.policy.name == policy
    desk.run()
    assert all(desk.output(each.stream.request) == generated(each) for each in asked)


def test_a_changed_weight_moves_no_counter() -> None:
    desk = desk_of((TrafficClass("standard"),), slots=1)
    desk.submit(*(of("standard", submission(number), "a" if number % 2 else "b") for number in range(1, 9)))
    steps(desk, 6)
    before = desk.core.state.policy.standings()
    desk.tell(PolicyChanged("fair", FairRules(classes=(TrafficClass("standard", weight=9.0),), tenants={"a": 5.0})))
    assert desk.core.state.policy.standings() == before


# Why.


def test_each_class_that_waits_is_told_why() -> None:
    desk = desk_of(slots=2)
    desk.submit(*(of("batch", submission(number, output=9)) for number in range(1, 9)))
    desk.planned()
    assert desk.core.state.decisions.reason("batch") is WaitReason.SLOTS
