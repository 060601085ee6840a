"""Who kills the executor, or makes steps fail, is found by halves; everybody else comes through."""

import itertools
import random
from collections.abc import Callable

import pytest
from fakes.desk import Desk, generated, stream, submission
from fakes.executor import FakeExecutor, geometry
from msgspec.structs import replace

from noria.proto.base import End, Stream
from noria.proto.execution import Failure, StepPlan
from noria.proto.output import TokenRun
from noria.proto.scheduling import Submit
from noria.services.scheduler.core.interface.events import (
    AdmissionJoined,
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    SchedulerReply,
)
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass
from noria.services.scheduler.core.scheduler import Scheduler

LARGE = geometry(num_blocks=200, max_slots=16)


class Ward(Desk):
    """A desk whose executor fails on some streams. deaths: how often it failed; steps: the streams of each plan."""

    def __init__(self, poison: set[int], failure: Failure | None, settings: CoreSettings | None = None) -> None:
        super().__init__(settings or CoreSettings(max_requests_per_batch=16), LARGE)
        self.poison = {stream(number) for number in poison}
        self.failure = failure
        self.deaths = 0
        self.steps: list[list[Stream]] = []

    def treat(self, plans: int = 2000, interfere: Callable[[], None] = lambda: None) -> None:
        """Plan and compute until nothing is left to do; every plan with a poisoned stream fails."""
        for _ in range(plans):
            while self.plan() is not None:
                pass
            if not self.executor.queued:
                return
            interfere()
            if not self.executor.queued:
                continue
            touched = self.executor.touched(self.executor.queued[0])
            self.steps.append(touched)
            if not self.poison & set(touched):
                self.done()
            elif self.failure is None:
                self.kill()
            else:
                self.deaths += 1
                self.tell(self.executor.fail(self.failure))
        raise AssertionError("it does not end")

    def kill(self) -> None:
        """The executor dies; the next life begins empty."""
        self.deaths += 1
        self.executor = FakeExecutor(LARGE)
        self.tell(ExecutorLost())
        self.tell(self.executor.geometry)


@pytest.mark.parametrize("failure", [None, Failure.ERROR, Failure.INVALID])
@pytest.mark.parametrize("poison", [{1}, {12}, {3, 9}, {1, 2, 3}])
def test_only_the_poisoned_are_condemned_and_nobody_else_loses_or_changes_a_token(
    poison: set[int], failure: Failure | None
) -> None:
    ward = Ward(poison, failure)
    ward.submit(*(submission(number, prompt=5, output=6) for number in range(1, 13)))
    ward.treat()
    for number in range(1, 13):
        if number in poison:
            assert (ward.end(number), ward.output(number)) == (End.ERROR, [])
            assert "alone" in ward.runs(number)[-1].detail or "injected" in ward.runs(number)[-1].detail
        else:
            assert (ward.end(number), ward.output(number)) == (End.LENGTH, generated(submission(number, 5, 6)))
    # Halving twelve finds one in four, and it fails alone twice.
    assert ward.deaths <= 7 * len(poison)


def test_between_two_deaths_innocents_make_tokens_so_that_no_crash_loop_is_seen() -> None:
    ward = Ward({1}, None)
    ward.submit(*(submission(number, prompt=5, output=40) for number in range(1, 13)))
    outputs = []

    def note() -> None:
        if len(outputs) <= ward.deaths:
            outputs.append(ward.core.state.counters.output_tokens)

    ward.treat(interfere=note)
    # After the first half has died too, there are tokens before each further death.
    assert all(later > earlier for earlier, later in itertools.pairwise(outputs[2:]))


def test_a_lone_request_is_not_condemned_before_it_has_failed_alone_as_a_suspect_twice() -> None:
    ward = Ward({1}, None)
    ward.submit(submission(1))
    ward.treat()
    assert (ward.deaths, ward.end(1)) == (3, End.ERROR)


def test_innocents_survive_any_number_of_kills_as_long_as_they_make_tokens_in_between() -> None:
    draw = random.Random(1)
    ward = Ward(set(), None)
    ward.submit(*(submission(number, prompt=5, output=60) for number in range(1, 9)))

    def sometimes() -> None:
        if draw.random() < 0.1:
            ward.kill()

    ward.treat(interfere=sometimes)
    assert ward.deaths > 10
    assert all(ward.output(number) == generated(submission(number, 5, 60)) for number in range(1, 9))


def test_a_token_clears_a_suspect_and_its_failures_alone() -> None:
    ward = Ward({1}, None)
    ward.submit(submission(1, output=6))
    ward.planned()
    for _ in range(2):
        ward.kill()
        ward.planned()
    ward.done()
    assert not len(ward.core.state.suspects)
    ward.planned()
    for _ in range(2):
        ward.kill()
        ward.planned()
    assert ward.end(1) is None


def test_suspects_and_all_others_take_turns_and_never_share_a_step() -> None:
    ward = Ward(set(), None, CoreSettings(max_requests_per_batch=16, max_batch_tokens=8))
    ward.submit(submission(1, prompt=60), submission(2, prompt=60))
    ward.planned()
    ward.kill()
    ward.submit(submission(3, prompt=60))
    sides = []

    def note() -> None:
        suspected = {each.stream for each in ward.core.state.suspects.group}
        if suspected and ward.executor.queued:
            touched = set(ward.executor.touched(ward.executor.queued[0]))
            sides.append(bool(touched & suspected))
            assert touched <= suspected or not touched & suspected
            assert len(ward.executor.queued) == 1

    ward.treat(interfere=note)
    assert sides[:6] == [True, False] * 3
    assert all(ward.end(number) is End.LENGTH for number in (1, 2, 3))


@pytest.mark.parametrize("returned", [True, False])
def test_an_executor_that_was_silent_and_returns_has_died_of_nobody(returned: bool) -> None:
    ward = Ward(set(), None)
    ward.submit(submission(1), submission(2))
    ward.planned()
    ward.tell(ExecutorSilent())
    assert not len(ward.core.state.suspects)
    ward.tell(ExecutorReturned() if returned else ExecutorLost())
    assert len(ward.core.state.suspects) == (0 if returned else 2)


def test_a_suspect_that_ends_or_is_withdrawn_is_forgotten() -> None:
    ward = Ward(set(), None)
    ward.submit(submission(1, output=1), submission(2), submission(3))
    ward.planned()
    ward.kill()
    for number in (1, 2, 3):
        ward.core._lifecycle.forget(ward.core.state.requests[stream(number)], ward.now_ns, "gone", reclaim=False)
        ward.core.check()
    assert not len(ward.core.state.suspects)


def test_suspects_are_found_under_the_policy_that_shares() -> None:
    rules = FairRules(
        classes=(TrafficClass("standard"), TrafficClass("admin", rank=3, reserved_slots=1, isolated=True))
    )
    ward = Ward({4}, None, CoreSettings(policy="fair", rules=rules, max_requests_per_batch=16))
    ward.submit(*(submission(number, prompt=5, output=6) for number in range(1, 9)))
    ward.treat()
    assert [number for number in range(1, 9) if ward.end(number) is End.ERROR] == [4]


def test_a_poisoned_step_is_never_planned_with_an_innocent_again_once_half_of_them_are_cleared() -> None:
    ward = Ward({2}, None)
    ward.submit(*(submission(number, prompt=5, output=60) for number in range(1, 5)))
    plans: list[StepPlan] = []
    ward.treat(interfere=lambda: plans.append(ward.executor.queued[0]))
    with_it = [touched for touched in ward.steps if stream(2) in touched]
    assert [len(touched) for touched in with_it] == [4, 2, 1, 1]


class Succession(Ward):
    """A ward whose scheduler dies whenever the executor has, as soon as its suspicions were told.

    forgetting: of how many of a stream's last tokens the ledger has not heard by then.
    """

    def __init__(self, poison: set[int], settings: CoreSettings | None = None, forgetting: int = 0) -> None:
        super().__init__(poison, None, settings)
        self.tell(AdmissionJoined())
        self.tell(Submit((), complete=True))
        self.forgetting = forgetting

    def kill(self) -> None:
        super().kill()
        self.succeed()

    def succeed(self) -> None:
        """The next scheduler is told what the ledger has, and whom the last one suspected."""
        told = self.core.suspected()
        assert told is not None
        doubts = {each.stream: each.doubt for each in told.entries}
        again = []
        for number in range(1, 13):
            request = self.core.state.requests.get(stream(number))
            if request is None or self.end(number) is not None:
                continue
            known = max(0, len(request.progress.output) - self.forgetting)
            self.replies = [each for each in self.replies if not self._unheard(each, number, known)]
            doubt = doubts.get(stream(number))
            again.append(
                replace(request.asked.submission, output_ids=tuple(request.progress.output[:known]), doubt=doubt)
            )
        self.core = Scheduler(self.core.state.settings)
        self.tell(self.executor.geometry)
        self.tell(AdmissionJoined())
        assert self.core.suspected() is None, "it does not know yet"
        self.tell(Submit(tuple(again[:2])))
        self.tell(Submit(tuple(again[2:]), complete=True))
        left = [each for each in told.entries if self.end(each.stream.request) is None]
        now = self.core.suspected()
        assert now is not None and sorted(now.entries, key=lambda each: each.stream) == sorted(
            left, key=lambda each: each.stream
        )

    def _unheard(self, reply: SchedulerReply, number: int, known: int) -> bool:
        return isinstance(reply, TokenRun) and reply.stream == stream(number) and reply.start >= known


@pytest.mark.parametrize("forgetting", [0, 2])
@pytest.mark.parametrize("policy", ["fifo", "fair"])
@pytest.mark.parametrize("poison", [{1}, {12}, {3, 9}, {1, 2, 3}])
def test_nobody_gains_innocence_or_guilt_by_a_schedulers_death(poison: set[int], policy: str, forgetting: int) -> None:
    ward = Succession(poison, CoreSettings(policy=policy, max_requests_per_batch=16), forgetting)
    ward.submit(*(submission(number, prompt=5, output=6) for number in range(1, 13)))
    ward.treat()
    for number in range(1, 13):
        if number in poison:
            assert ward.end(number) is End.ERROR
        else:
            assert (ward.end(number), ward.output(number)) == (End.LENGTH, generated(submission(number, 5, 6)))
    assert ward.deaths <= 7 * len(poison), "as many as with one scheduler"


def test_tokens_that_the_ledger_had_not_heard_of_clear_nobody_when_they_are_computed_again() -> None:
    """It is poisoned from its fourth token on: what it had made before says nothing."""
    ward = Succession(set(), forgetting=2)
    ward.submit(submission(1, prompt=5, output=9))
    deaths = []

    def at_the_fourth() -> None:
        request = ward.core.state.requests[stream(1)]
        if len(request.progress.output) >= 3:
            deaths.append(len(ward.core.state.suspects))
            ward.kill()

    ward.treat(interfere=at_the_fourth)
    assert (ward.end(1), deaths) == (End.ERROR, [0, 1, 1])


def test_a_token_that_only_the_executor_knows_of_clears_at_a_takeover() -> None:
    first = Ward(set(), None)
    first.submit(submission(1), submission(2))
    first.planned()
    first.kill()
    doubts = {each.stream: each.doubt for each in first.core.state.suspects.suspected_now.entries}
    assert set(doubts) == {stream(1), stream(2)}
    first.planned()
    first.result()
    (held,) = first.executor.inventory().entries
    ward = Ward(set(), None)
    ward.executor = first.executor
    ward.tell(AdmissionJoined())
    ward.tell(replace(LARGE, inventory=True))
    ward.tell(first.executor.inventory())
    asked = tuple(replace(submission(number), doubt=doubts[stream(number)]) for number in (1, 2))
    ward.tell(Submit(asked, complete=True))
    told = ward.core.suspected()
    assert told is not None and [each.stream for each in told.entries] == [
        each for each in (stream(1), stream(2)) if each != held.stream
    ]
    ward.treat()
    assert all(ward.output(number) == generated(submission(number)) for number in (1, 2))
