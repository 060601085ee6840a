"""What a step consists of."""

import msgspec
import pytest
from fakes.desk import Desk, generated, stream, submission
from fakes.executor import geometry

from noria.proto.execution import Slice
from noria.proto.output import Gap, Progress
from noria.services.scheduler.core.interface.settings import CoreSettings


def test_a_long_prompt_is_computed_in_chunks_next_to_decodes() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=8, steps_in_flight=1))
    desk.submit(submission(1, prompt=3, output=9))
    assert desk.lengths(desk.planned()) == {1: 3}
    desk.done()
    desk.submit(submission(2, prompt=20))
    for expected in ({1: 1, 2: 7}, {1: 1, 2: 7}, {1: 1, 2: 6}, {1: 1, 2: 1}):
        assert desk.lengths(desk.planned()) == expected
        desk.done()


def test_several_prompts_share_the_token_budget() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=10))
    desk.submit(submission(1, prompt=4), submission(2, prompt=4), submission(3, prompt=4))
    assert desk.lengths(desk.planned()) == {1: 4, 2: 4, 3: 2}


def test_prompts_take_what_the_executor_advises_beside_decodes_and_alone() -> None:
    advised = msgspec.structs.replace(geometry(), prefill_tokens=6, prefill_tokens_beside=3)
    desk = Desk(CoreSettings(steps_in_flight=1), advised)
    desk.submit(submission(1, prompt=2, output=9), submission(2, prompt=20))
    for expected in ({1: 2, 2: 4}, {1: 1, 2: 3}, {1: 1, 2: 3}):
        assert desk.lengths(desk.planned()) == expected
        desk.done()


@pytest.mark.parametrize(("decodes", "expected"), [(1, 9), (2, 9), (3, 6), (4, 4), (6, 3), (7, 3)])
@pytest.mark.parametrize("policy", ["fifo", "fair"])
def test_the_fewer_decode_the_more_a_prompt_gets_beside_them(policy: str, decodes: int, expected: int) -> None:
    advised = msgspec.structs.replace(geometry(), prefill_tokens_beside=3, prefill_tokens_few=9, prefill_decodes=6)
    desk = Desk(CoreSettings(policy=policy, steps_in_flight=1), advised)
    desk.submit(*(submission(number, prompt=1, output=9) for number in range(1, decodes + 1)))
    desk.planned()
    desk.done()
    desk.submit(submission(99, prompt=20))
    assert desk.lengths(desk.planned())[99] == expected


@pytest.mark.parametrize(("configured", "expected"), [(2, 2), (64, 7)])
def test_a_configured_prefill_chunk_wins_over_the_executors_advice(configured: int, expected: int) -> None:
    advised = msgspec.structs.replace(geometry(), prefill_tokens=6, prefill_tokens_beside=3)
    desk = Desk(CoreSettings(max_batch_tokens=7, prefill_tokens=configured), advised)
    desk.submit(submission(1, prompt=20))
    assert desk.lengths(desk.planned()) == {1: expected}


def test_prefill_first_gives_prompts_the_whole_budget() -> None:
    advised = msgspec.structs.replace(geometry(), prefill_tokens=6, prefill_tokens_beside=3)
    desk = Desk(CoreSettings(policy="prefill_first", max_batch_tokens=10), advised)
    desk.submit(submission(1, prompt=20))
    assert desk.lengths(desk.planned()) == {1: 10}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("fifo", [{1: 1, 2: 3}, {1: 1, 2: 3}]), ("prefill_first", [{1: 1, 2: 3}, {2: 4}])],
)
def test_policies_differ_in_who_uses_the_budget_first(policy: str, expected: list[dict[int, int]]) -> None:
    desk = Desk(CoreSettings(policy=policy, max_batch_tokens=4, steps_in_flight=1))
    desk.submit(submission(1, prompt=2, output=9))
    desk.planned()
    desk.done()
    desk.submit(submission(2, prompt=20))
    for lengths in expected:
        assert desk.lengths(desk.planned()) == lengths
        desk.done()


def test_arrivals_start_by_age_and_not_by_order_of_receipt() -> None:
    desk = Desk(CoreSettings(max_requests_per_batch=1))
    desk.submit(submission(1), submission(2, seniority_ms=50))
    assert list(desk.lengths(desk.planned())) == [2]


def test_an_unknown_policy_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="fifo, prefill_first"):
        Desk(CoreSettings(policy="lottery"))


@pytest.mark.parametrize(("configured", "offered", "expected"), [(3, 8, 3), (8, 3, 3)])
def test_requests_in_a_step_are_bounded_by_configuration_and_executor(
    configured: int, offered: int, expected: int
) -> None:
    desk = Desk(CoreSettings(max_requests_per_batch=configured), geometry(max_slots=offered))
    desk.submit(*(submission(number) for number in range(10)))
    assert len(desk.planned().slices) == expected


@pytest.mark.parametrize(("configured", "offered"), [(5, 64), (64, 5)])
def test_query_tokens_are_bounded_by_configuration_and_executor(configured: int, offered: int) -> None:
    desk = Desk(CoreSettings(max_batch_tokens=configured), geometry(max_batch_tokens=offered))
    desk.submit(submission(1, prompt=20))
    assert desk.lengths(desk.planned()) == {1: 5}


def test_cached_tokens_read_in_a_step_are_bounded() -> None:
    desk = Desk(CoreSettings(max_cache_tokens=12, steps_in_flight=1))
    desk.submit(submission(1, prompt=8, output=9), submission(2, prompt=8, output=9))
    assert desk.lengths(desk.planned()) == {1: 8, 2: 4}
    desk.done()
    assert desk.lengths(desk.planned()) == {1: 1}


def test_a_request_longer_than_the_cache_budget_still_goes_on_alone() -> None:
    desk = Desk(CoreSettings(max_cache_tokens=2))
    desk.submit(submission(1, prompt=8, output=3))
    desk.run()
    assert len(desk.output(1)) == 3


def test_the_last_chunk_of_a_prompt_in_flight_is_followed_by_a_decode_that_carries() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=4))
    desk.submit(submission(1, prompt=6))
    plans = [desk.planned()]
    plans.append(desk.planned())
    desk.done()
    plans.append(desk.planned())
    slices = [plan.slices for plan in plans]
    assert slices == [(Slice(0, 0, 4, False, False),), (Slice(0, 4, 2, False, True),), (Slice(0, 6, 1, True, True),)]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_no_more_than_the_configured_steps_are_in_flight(steps_in_flight: int) -> None:
    desk = Desk(CoreSettings(steps_in_flight=steps_in_flight))
    desk.submit(submission(1, output=9))
    for _ in range(steps_in_flight):
        assert desk.plan() is not None
    assert desk.plan() is None
    desk.done()
    assert desk.plan() is not None


@pytest.mark.parametrize(("output", "context", "expected"), [(5, 256, 5), (50, 10, 6), (None, 10, 6), (None, 256, 244)])
def test_nothing_is_planned_beyond_the_length_or_the_context(output: int | None, context: int, expected: int) -> None:
    desk = Desk(shape=geometry(max_model_tokens=context))
    asked = submission(1, prompt=4, output=5)
    asked = type(asked)(asked.stream, 0, asked.prompt_ids, type(asked.sampling)(max_tokens=output, seed=1))
    desk.submit(asked)
    desk.run()
    sampled = [each for plan in desk.plans for each in plan.slices if each.sample]
    assert len(sampled) == len(desk.output(1)) == expected


def test_a_slot_that_ends_by_length_is_refilled_in_the_very_next_step() -> None:
    desk = Desk(CoreSettings(max_requests_per_batch=1))
    desk.submit(submission(1, output=1), submission(2, output=1))
    assert desk.planned().fill[0].stream == stream(1)
    second = desk.planned()
    assert second.release == (0,)
    assert second.fill[0].stream == stream(2)


def test_what_a_slot_computes_with_is_sent_once_and_then_only_new_blocks() -> None:
    desk = Desk(shape=geometry(page_size=4))
    desk.submit(submission(1, prompt=4, output=9))
    desk.run()
    assert [len(plan.fill) for plan in desk.plans if plan.slices] == [1, *[0] * 8]
    assert [len(grow.blocks) for plan in desk.plans for grow in plan.grow] == [1, 1]


def test_a_stream_with_stop_strings_is_never_planned_far_ahead_of_the_detokenizer() -> None:
    desk = Desk(CoreSettings(stop_lookahead=3))
    desk.submit(submission(1, output=9, stop_strings=True))
    desk.run()
    assert len(desk.output(1)) == 3
    desk.tell(Progress((Gap(stream(1), 2),)))
    desk.run()
    assert len(desk.output(1)) == 5
    desk.tell(Progress((Gap(stream(1), 1),)))
    desk.run()
    assert len(desk.output(1)) == 5


def test_an_executor_without_work_is_told_which_slots_are_empty() -> None:
    desk = Desk()
    desk.submit(submission(1, output=2))
    desk.run()
    assert desk.plans[-1].slices == ()
    assert desk.plans[-1].release == (0,)
    assert desk.executor.slots == 0
    assert desk.plan() is None


def test_without_an_executor_nothing_is_planned_and_with_it_everything_is() -> None:
    desk = Desk(join=False)
    asked = submission(1)
    desk.submit(asked)
    assert desk.plan() is None
    desk.tell(desk.executor.geometry)
    desk.run()
    assert desk.output(1) == generated(asked)
