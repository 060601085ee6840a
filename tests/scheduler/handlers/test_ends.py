"""How streams end, and what is discarded, freed and kept then."""

import re

import pytest
from fakes.desk import Desk, ending_after, generated, stream, submission

from noria.proto.base import End, Ended
from noria.proto.output import Gap, Resend, TokenRun
from noria.proto.scheduling import Submit, Withdraw
from noria.services.scheduler.core.interface.events import AdmissionJoined, RequestPhase
from noria.services.scheduler.core.interface.settings import CoreSettings


def test_an_end_id_ends_a_stream_and_its_slice_in_flight_is_discarded() -> None:
    desk = Desk()
    asked = ending_after(1, 1)
    desk.submit(asked)
    desk.planned()
    desk.planned()
    desk.done()
    assert desk.end(1) is End.STOP
    assert desk.core.state.counters.discarded_slices == 0
    desk.done()
    assert desk.output(1) == generated(asked)
    assert desk.core.state.counters.discarded_slices == 1
    assert desk.core.state.counters.wasted_tokens == 1


def test_the_blocks_of_an_ended_stream_are_free_only_after_its_last_step() -> None:
    desk = Desk()
    desk.submit(ending_after(1, 1))
    desk.planned()
    desk.planned()
    cache = desk.core.state.cache
    assert cache is not None
    desk.done()
    assert cache.available < cache.size
    desk.done()
    assert cache.available == cache.size


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, 2), (2, 2), (3, 20)])
def test_an_end_id_counts_only_once_min_tokens_are_out(min_tokens: int, expected: int) -> None:
    desk = Desk()
    plain = ending_after(5, 2)
    # The fake samples the id again only by chance; with this seed it does not.
    asked = submission(5, 4, 20, end_ids=plain.end_ids, min_tokens=min_tokens)
    assert generated(asked).count(plain.end_ids[0]) == 1
    desk.submit(asked)
    desk.run()
    assert len(desk.output(5)) == expected


def test_a_stream_submitted_with_its_ids_so_far_goes_on_from_there() -> None:
    whole = generated(submission(1, output=6))
    desk = Desk()
    desk.submit(submission(1, output=6, output_ids=tuple(whole[:4])))
    assert desk.planned().fill[0].output_ids == tuple(whole[:4])
    desk.run()
    assert desk.output(1) == whole[4:]
    assert desk.runs(1)[0].start == 4


@pytest.mark.parametrize(("length", "end_ids", "expected"), [(6, (), End.LENGTH), (3, "last", End.STOP)])
def test_a_stream_submitted_whole_ends_at_once(length: int, end_ids: object, expected: End) -> None:
    ids = tuple(generated(submission(1, output=6))[:length])
    desk = Desk()
    desk.submit(submission(1, output=6, output_ids=ids, end_ids=ids[-1:] if end_ids else ()))
    assert desk.runs(1) == [TokenRun(stream(1), 0, length, (), expected)]
    assert desk.plan() is None


def test_a_stream_known_with_the_same_attempt_is_ignored_and_a_higher_attempt_replaces_it() -> None:
    desk = Desk()
    desk.submit(submission(1))
    desk.submit(submission(1))
    assert len(desk.core.state.requests) == 1
    desk.planned()
    desk.submit(submission(1, attempt=1))
    desk.run()
    assert [run.attempt for run in desk.runs(1)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (submission(1, prompt=0), "no tokens"),
        (submission(1, prompt=4, output=10_000), "context|fit"),
        (submission(1, prompt=300, output=1), "no room"),
        (submission(1, prompt=100, output=150), "can never fit"),
    ],
)
def test_what_can_never_be_computed_ends_with_an_error_that_says_why(asked: object, words: str) -> None:
    desk = Desk()
    desk.submit(asked)  # type: ignore[arg-type]
    (run,) = desk.runs(1)
    assert run.end == End.ERROR
    assert re.search(words, run.detail)
    assert desk.plan() is None


def test_a_withdrawn_waiting_stream_leaves_at_once() -> None:
    desk = Desk(join=False)
    desk.submit(submission(1))
    desk.tell(Withdraw((stream(1),)))
    assert not desk.core.state.requests
    assert [(each.blocks, each.steps) for each in desk.reclaims()] == [(0, 0)]


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_a_withdrawn_running_stream_gives_back_its_blocks_after_its_steps_in_flight(steps_in_flight: int) -> None:
    desk = Desk(CoreSettings(steps_in_flight=steps_in_flight))
    desk.submit(submission(1, prompt=9, output=20))
    for _ in range(steps_in_flight):
        desk.planned()
    desk.tell(Withdraw((stream(1),)))
    assert not desk.reclaims()
    assert all(not plan.slices for plan in [desk.plan()] if plan)
    for _ in range(steps_in_flight):
        desk.done()
    (reclaimed,) = desk.reclaims()
    assert (reclaimed.blocks, reclaimed.steps) == (3, steps_in_flight)
    assert reclaimed.delay_us == steps_in_flight * 1000
    assert not desk.output(1)


def test_a_running_stream_that_ended_in_the_ledger_is_forgotten_even_if_running() -> None:
    desk = Desk()
    desk.submit(submission(1, output=20), submission(2, output=3))
    desk.planned()
    desk.tell(Ended((stream(1),)))
    desk.run()
    assert stream(1) not in desk.core.state.requests
    assert len(desk.output(2)) == 3
    assert [each.stream for each in desk.reclaims()] == [stream(1)]


def test_streams_whose_end_was_missed_are_forgotten_once_admission_has_named_all_others() -> None:
    desk = Desk(CoreSettings(max_requests_per_batch=3))
    asked = [submission(1, output=2), *(submission(number, output=9) for number in (2, 3, 4, 5))]
    desk.submit(*asked)
    for _ in range(3):
        desk.planned()
        desk.done()
    assert desk.core.state.finished == 1
    desk.tell(AdmissionJoined())
    desk.tell(Submit((asked[1],)))
    assert len(desk.core.state.requests) == 5
    desk.tell(Submit((asked[3], submission(6)), complete=True))
    assert set(desk.core.state.requests) == {stream(2), stream(4), stream(6)}
    desk.run()
    assert [len(desk.output(number)) for number in (2, 4, 6)] == [9, 9, 4]
    # From now on a message is about the streams in it alone.
    desk.tell(Submit((), complete=True))
    assert set(desk.core.state.requests) == {stream(2), stream(4), stream(6)}


def test_unknown_streams_are_ignored() -> None:
    desk = Desk()
    assert desk.tell(Withdraw((stream(7),))) == []
    assert desk.tell(Ended((stream(7),))) == []
    assert desk.tell(Resend((Gap(stream(7), 0),))) == []


def test_the_ids_of_an_ended_stream_are_sent_again_until_admission_says_it_ended() -> None:
    desk = Desk()
    asked = submission(1, output=3)
    desk.submit(asked)
    desk.run()
    ids = tuple(generated(asked))
    for start in range(4):
        (again,) = desk.tell(Resend((Gap(stream(1), start),)))
        assert isinstance(again, TokenRun)
        assert (again.start, again.ids, again.end) == (start, ids[start:], End.LENGTH)
    desk.tell(Ended((stream(1),)))
    assert desk.tell(Resend((Gap(stream(1), 0),))) == []
    assert desk.core.state.finished == 0


def test_a_gap_at_the_present_end_of_a_running_stream_is_answered_by_where_it_stands() -> None:
    desk = Desk()
    desk.submit(submission(1, output=9))
    desk.planned()
    desk.done()
    assert desk.tell(Resend((Gap(stream(1), 1), Gap(stream(1), 5)))) == [TokenRun(stream(1), 0, 1, ())]


def test_whoever_joins_is_told_where_each_stream_stands_that_has_begun() -> None:
    desk = Desk()
    desk.submit(submission(1, output=9), submission(2, output=1), submission(3, output=9, prompt=200))
    assert desk.core.stream_positions() == Resend(())
    desk.planned()
    desk.done()
    replies = desk.tell(desk.core.stream_positions())
    assert replies == [TokenRun(stream(1), 0, 1, ()), TokenRun(stream(2), 0, 1, (), End.LENGTH)]


def test_a_stream_moves_through_its_stages_once() -> None:
    desk = Desk(CoreSettings(max_batch_tokens=2))
    desk.submit(submission(1, prompt=5, output=3))
    desk.run()
    stages = [each.phase for each in desk.moves(1)]
    assert stages == [RequestPhase.QUEUED, RequestPhase.PREFILLING, RequestPhase.DECODING, RequestPhase.ENDED]
    assert desk.moves(1)[-1].decision == "length"
    assert desk.moves(1)[-1].output_tokens == 3
