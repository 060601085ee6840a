"""When the step after a long one is planned, how long steps stay short, and which prompts are cut."""

from dataclasses import replace as changed

import pytest
from fakes.desk import Desk, submission
from fakes.executor import geometry
from msgspec.structs import replace

from noria.proto.execution import StepPlan
from noria.proto.scheduling import Submission
from noria.services.scheduler.core.interface.events import ExecutorLost, TimePassed
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass

MS = 1_000_000
CLASSES = (TrafficClass("interactive", rank=2, weight=4.0, itl_target_ms=40.0), TrafficClass("batch", rank=0))
SETTINGS = CoreSettings(
    policy="fair", rules=FairRules(classes=CLASSES), max_batch_tokens=512, max_requests_per_batch=16
)


def of(traffic_class: str, each: Submission) -> Submission:
    return replace(each, traffic_class=traffic_class, tenant=traffic_class, salt=traffic_class.encode())


class Timed(Desk):
    """Steps take 1 ms and 0.1 ms a token, in simulated time too."""

    def __init__(self, settings: CoreSettings = SETTINGS) -> None:
        super().__init__(settings, geometry(num_blocks=2000, max_slots=16, max_batch_tokens=512))

    def finish(self, plan: StepPlan) -> None:
        spent_us = 1000 + 100 * sum(each.length for each in plan.slices)
        self.now_ns += spent_us * 1000 - MS
        self.tell(replace(self.result(), compute_us=spent_us))

    def learn(self) -> None:
        """Steps of many sizes."""
        for number in range(1, 16):
            self.submit(of("batch", submission(900 + number, prompt=16 * number, output=2)))
            while True:
                while self.plan() is not None:
                    pass
                if not self.executor.queued:
                    break
                self.finish(self.plans[-len(self.executor.queued)])


def learned(settings: CoreSettings = SETTINGS) -> Timed:
    """A core that knows how long its steps take."""
    desk = Timed(changed(settings, steps_in_flight=2))
    desk.learn()
    return desk


def crowded() -> Timed:
    """Long prompts beside a request that asks for short steps; one step is in flight."""
    desk = learned()
    desk.submit(of("interactive", submission(40, prompt=4, output=30)))
    desk.finish(desk.planned())
    desk.submit(*(of("batch", submission(number, prompt=240, output=2)) for number in range(1, 9)))
    return desk


def test_the_step_after_a_long_one_is_planned_shortly_before_its_end_and_holds_who_came_meanwhile() -> None:
    desk = crowded()
    first = desk.planned()
    sent_ns = desk.now_ns
    assert desk.plan() is None
    assert desk.core.due_ns is not None
    length_ms = 1 + 0.1 * sum(each.length for each in first.slices)
    assert 0.65 * length_ms * MS < desk.core.due_ns - sent_ns < 0.9 * length_ms * MS
    desk.submit(of("interactive", submission(50, prompt=20, output=3)))
    assert desk.plan() is None
    desk.now_ns = desk.core.due_ns
    desk.tell(TimePassed())
    second = desk.planned()
    assert 50 in desk.lengths(second)
    assert desk.core.due_ns is None


def test_a_step_that_ends_sooner_than_foretold_is_followed_at_once() -> None:
    desk = crowded()
    desk.planned()
    assert desk.plan() is None
    desk.tell(desk.result())
    desk.planned()


def test_nothing_is_due_any_more_when_the_executor_is_lost_meanwhile() -> None:
    desk = crowded()
    desk.planned()
    assert desk.plan() is None
    assert desk.core.due_ns is not None
    desk.tell(ExecutorLost())
    assert desk.plan() is None
    assert desk.core.due_ns is None


@pytest.mark.parametrize("policy", ["fifo", "prefill_first"])
def test_those_who_go_by_age_plan_two_steps_ahead(policy: str) -> None:
    desk = learned(changed(SETTINGS, policy=policy))
    desk.submit(*(of("batch", submission(number, prompt=240, output=2)) for number in range(1, 9)))
    desk.planned()
    desk.planned()


def test_where_nobody_asks_for_short_steps_two_are_planned_ahead() -> None:
    desk = learned()
    desk.submit(*(of("batch", submission(number, prompt=240, output=2)) for number in range(1, 9)))
    desk.planned()
    desk.planned()


def test_short_steps_are_followed_before_they_end() -> None:
    desk = learned()
    desk.submit(*(of("batch", submission(number, prompt=5, output=8)) for number in range(1, 5)))
    desk.planned()
    desk.planned()


def test_steps_stay_short_for_a_while_after_the_last_request_that_asks_for_it() -> None:
    desk = learned(changed(SETTINGS, steps_in_flight=1))
    desk.submit(of("interactive", submission(50, prompt=20, output=2)))
    for _ in range(2):
        desk.finish(desk.planned())
    desk.submit(*(of("batch", submission(number, prompt=240, output=2)) for number in range(1, 15)))
    plan = desk.planned()
    assert sum(each.length for each in plan.slices) <= 390
    desk.finish(plan)
    desk.now_ns += 61_000 * MS
    assert sum(each.length for each in desk.planned().slices) > 500


def test_a_prompt_that_a_step_can_end_is_not_cut_for_others_and_a_long_one_is() -> None:
    desk = Desk(changed(SETTINGS, max_batch_tokens=64, steps_in_flight=1), geometry(num_blocks=256, max_slots=16))
    desk.submit(*(of("batch", submission(number, prompt=50, output=2)) for number in (1, 2)))
    assert desk.lengths(desk.planned()) == {1: 50, 2: 14}
    desk = Desk(changed(SETTINGS, max_batch_tokens=64, steps_in_flight=1), geometry(num_blocks=256, max_slots=16))
    desk.submit(*(of("batch", submission(number, prompt=90, output=2)) for number in (1, 2)))
    assert desk.lengths(desk.planned()) == {1: 32, 2: 32}
