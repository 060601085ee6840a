"""What could keep the wheel from turning, and does not: each way in which everybody could wait for somebody."""

import pytest
from fakes.desk import Desk, generated, submission
from fakes.executor import geometry
from msgspec.structs import replace

from noria.proto.scheduling import Withdraw
from noria.services.scheduler.core.interface.settings import CoreSettings


def waits_for_blocks(host: int = 0) -> Desk:
    """Two requests that cannot both finish; the first is the oldest."""
    desk = Desk(CoreSettings(safety_margin=0.0), geometry(num_blocks=12, page_size=1, host_slots=host))
    desk.submit(submission(1, prompt=4, output=6), submission(2, prompt=4, output=6))
    return desk


@pytest.mark.parametrize("host", [0, 20])
def test_the_oldest_overrides_every_immunity(host: int) -> None:
    desk = waits_for_blocks(host)
    desk.planned()
    (newest,) = [each for each in desk.core.state.decoding if each.stream.request == 2]
    newest.work.preempted_at = 1_000_000
    desk.run()
    for number in (1, 2):
        assert desk.output(number) == generated(submission(number, prompt=4, output=6))


@pytest.mark.parametrize("margin", [0.0, 0.15, 0.9])
@pytest.mark.parametrize("host", [0, 20])
def test_the_margin_is_waived_when_nothing_is_active_also_for_those_who_come_back(margin: float, host: int) -> None:
    desk = Desk(CoreSettings(safety_margin=margin), geometry(num_blocks=12, page_size=1, host_slots=host))
    for number in (1, 2, 3):
        desk.submit(submission(number, prompt=4, output=6))
    desk.run()
    for number in (1, 2, 3):
        assert desk.output(number) == generated(submission(number, prompt=4, output=6))


def test_when_all_stall_in_one_step_somebody_gives_way_in_that_step() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0, steps_in_flight=1), geometry(num_blocks=6, page_size=4))
    desk.submit(submission(1, prompt=8, output=4), submission(2, prompt=8, output=4))
    assert len(desk.planned().slices) == 2
    desk.done()
    assert desk.lengths(desk.planned()) == {1: 1}
    desk.run()
    assert desk.output(2) == generated(submission(2, prompt=8, output=4))


def test_cached_pages_count_as_free_when_a_request_asks_for_all_of_the_cache() -> None:
    desk = Desk(shape=geometry(num_blocks=12, page_size=4))
    for number in (1, 2, 3):
        desk.submit(submission(number, prompt=20, output=1))
        desk.run()
    assert desk.core.state.cache is not None
    assert desk.core.state.cache.pool.blank == 0
    desk.submit(submission(9, prompt=30, output=10))
    desk.run()
    assert desk.output(9) == generated(submission(9, prompt=30, output=10))


def test_cached_pages_count_for_the_margin() -> None:
    desk = Desk(CoreSettings(safety_margin=0.15), geometry(num_blocks=22, page_size=1))
    desk.submit(submission(20, prompt=18, output=1))
    desk.run()
    desk.submit(submission(1, prompt=6), submission(2, prompt=6))
    assert list(desk.lengths(desk.planned())) == [1, 2]


def test_cached_pages_that_a_request_takes_itself_are_not_given_up_for_it() -> None:
    desk = Desk(CoreSettings(safety_margin=0.0), geometry(num_blocks=12, page_size=1))
    desk.submit(submission(1, prompt=6, output=1))
    desk.run()
    running = submission(5, prompt=3, output=4)
    again = replace(submission(2, prompt=6, output=2), prompt_ids=(*submission(1, prompt=6).prompt_ids, 30, 31))
    desk.submit(running, again)
    desk.run()
    assert (desk.output(5), desk.output(2)) == (generated(running), generated(again))


def test_who_waits_for_a_twin_lets_others_pass_and_is_not_forgotten() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=40, steps_in_flight=1))
    first, twin, other = submission(1, prompt=12), submission(2, prompt=12), submission(3, prompt=12)
    twin = replace(twin, prompt_ids=(*first.prompt_ids, 30))
    desk.submit(first, twin, other)
    assert list(desk.lengths(desk.planned())) == [1, 3]
    desk.done()
    assert 2 in desk.lengths(desk.planned())
    desk.run()
    assert desk.output(2) == generated(twin)


def test_a_row_of_twins_each_waiting_for_the_one_before_ends_when_the_first_is_withdrawn() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=64, steps_in_flight=1))
    prompt = tuple(1 + each % 31 for each in range(40))
    asked = [replace(submission(number), prompt_ids=prompt[: 8 * number]) for number in range(1, 6)]
    desk.submit(*asked)
    desk.planned()
    desk.tell(Withdraw((asked[0].stream,)))
    desk.run()
    for each in asked[1:]:
        assert desk.output(each.stream.request) == generated(each)


def test_a_request_that_no_cache_could_hold_is_refused_and_blocks_nobody() -> None:
    desk = Desk(shape=geometry(num_blocks=7, page_size=4))
    desk.submit(submission(1, prompt=30, output=5), submission(2))
    desk.run()
    assert "can never fit" in desk.runs(1)[0].detail
    assert desk.output(2) == generated(submission(2))
