"""When tokens are told, and what of several steps looks like in one message."""

import msgspec
import pytest
from fakes.desk import Desk, ending_after, generated, stream, submission

from noria.proto.base import End, TokenLogprob
from noria.proto.execution import StepDone
from noria.proto.output import Gap, Progress, Resend, TokenRun
from noria.proto.scheduling import Withdraw
from noria.services.scheduler.core.interface.events import EventBody, ExecutorLost, StreamPhaseChanged
from noria.services.scheduler.token_batches import TokenBatches

_MS = 1_000_000


class Telling:
    """A desk whose tokens go through a bundle. told: each message, and at which millisecond it left."""

    def __init__(self, interval_ms: int) -> None:
        self.desk = Desk()
        self.bundle = TokenBatches(self.desk.core.view, interval_ms * _MS)
        self.told: list[tuple[int, tuple[TokenRun, ...]]] = []

    def tell(self, body: EventBody, ms: int = 1) -> None:
        """Something happens so many milliseconds later; plans are sent and what is due is told."""
        self.desk.now_ns += (ms - 1) * _MS
        for reply in self.desk.tell(body):
            if isinstance(reply, TokenRun):
                self.bundle.add(reply, asked=not isinstance(body, StepDone))
            elif isinstance(reply, StreamPhaseChanged):
                self.bundle.phase_changed(reply)
        while self.desk.plan() is not None:
            pass
        self.turn()

    def turn(self) -> None:
        """Tell what is due."""
        if self.bundle.due(self.desk.now_ns):
            self.told.append((self.desk.now_ns // _MS, self.bundle.take(self.desk.now_ns)))

    def steps(self, number: int, ms: int) -> None:
        """So many steps, of so many milliseconds each."""
        for _ in range(number):
            self.tell(msgspec.structs.replace(self.desk.result(), compute_us=ms * 1000), ms)

    def begin(self, *numbers: int, ms: int = 6) -> None:
        """Streams that have made five tokens in steps of so many milliseconds, which is known then; nothing is held back."""
        self.desk.submit(*(submission(each, output=100) for each in numbers))
        while self.desk.plan() is not None:
            pass
        self.steps(5, ms)
        self.bundle.take(self.desk.now_ns)
        self.told.clear()

    @property
    def lengths(self) -> list[int]:
        """How many ids each message had."""
        return [sum(len(run.ids) for run in runs) for _, runs in self.told]


@pytest.mark.parametrize(("ms", "together"), [(4, 7), (7, 4), (9, 3), (14, 2), (16, 1), (40, 1)])
def test_tokens_of_as_many_steps_are_told_together_as_end_within_the_interval(ms: int, together: int) -> None:
    telling = Telling(30)
    telling.begin(1, ms=ms)
    began_ms = telling.desk.now_ns // _MS
    telling.steps(3 * together, ms)
    assert telling.lengths == [together] * 3
    assert [at_ms - began_ms for at_ms, _ in telling.told] == [together * ms * each for each in (1, 2, 3)]


def test_without_an_interval_every_step_is_told_at_once() -> None:
    telling = Telling(0)
    telling.begin(1)
    telling.steps(10, 6)
    assert telling.lengths == [1] * 10


def test_a_stream_has_one_run_with_all_its_ids_in_a_message() -> None:
    telling = Telling(30)
    telling.begin(1, 2)
    telling.steps(10, 6)
    ids: dict[int, list[int]] = {1: [], 2: []}
    starts = {number: len(telling.desk.output(number)) - 10 for number in ids}
    for _, runs in telling.told:
        assert [run.stream.request for run in runs] == [1, 2]
        for run in runs:
            assert run.start == starts[run.stream.request] + len(ids[run.stream.request])
            ids[run.stream.request] += run.ids
    assert len(ids[1]) >= 5
    for number, got in ids.items():
        assert got == generated(submission(number, output=100))[starts[number] :][: len(got)]


def test_the_end_of_a_stream_is_told_at_once_and_with_it_all_that_was_held_back() -> None:
    telling = Telling(1000)
    telling.desk.submit(ending_after(1, 9), submission(2, output=100))
    while telling.desk.plan() is not None:
        pass
    telling.steps(5, 6)
    telling.bundle.take(telling.desk.now_ns)
    telling.told.clear()
    telling.steps(3, 6)
    assert not telling.told
    telling.steps(1, 6)
    ((_, runs),) = telling.told
    first, second = sorted(runs, key=lambda run: run.stream)
    assert (first.start, len(first.ids), first.end) == (5, 4, End.STOP)
    assert (second.start, len(second.ids), second.end) == (5, 4, 0)


def test_a_first_token_is_told_at_once() -> None:
    telling = Telling(1000)
    telling.begin(1)
    telling.desk.submit(submission(2))
    telling.steps(2, 6)
    assert not telling.told
    telling.steps(1, 6)
    ((_, runs),) = telling.told
    assert {(run.stream.request, run.start, len(run.ids)) for run in runs} == {(1, 5, 3), (2, 0, 1)}


def test_streams_with_stop_strings_wait_for_nobody() -> None:
    telling = Telling(1000)
    telling.desk.submit(submission(1, output=100, stop_strings=True))
    while telling.desk.plan() is not None:
        pass
    for seen in range(1, 6):
        telling.steps(1, 6)
        telling.tell(Progress((Gap(stream(1), seen),)))
    assert telling.lengths == [1] * 5


def test_who_asks_is_answered_at_once() -> None:
    telling = Telling(1000)
    telling.begin(1)
    telling.steps(2, 6)
    telling.tell(Resend((Gap(stream(1), 6),)))
    ((_, runs),) = telling.told
    assert [(run.start, len(run.ids)) for run in runs] == [(5, 2), (6, 1)]


def test_what_no_step_follows_is_not_held_back() -> None:
    telling = Telling(1000)
    telling.begin(1)
    telling.steps(2, 6)
    telling.tell(ExecutorLost())
    assert telling.lengths == [2]


def test_tokens_held_back_of_a_stream_that_is_withdrawn_leave_with_its_last_step() -> None:
    telling = Telling(1000)
    telling.begin(1)
    telling.steps(2, 6)
    telling.tell(Withdraw((stream(1),)))
    telling.steps(3, 6)  # two of the stream, and one that tells of the empty slot
    assert len(telling.bundle) == 0 and telling.bundle.due_ns is None


def test_after_half_as_long_again_tokens_are_told_though_no_step_ends() -> None:
    telling = Telling(30)
    telling.begin(1)
    began_ns = telling.desk.now_ns
    telling.steps(1, 6)
    assert telling.bundle.due_ns == began_ns + 45 * _MS
    telling.desk.now_ns = began_ns + 45 * _MS - 1
    telling.turn()
    assert not telling.told
    telling.desk.now_ns += 1
    telling.turn()
    assert telling.lengths == [1]


def test_tokens_are_told_at_once_while_nobody_knows_how_long_steps_take() -> None:
    telling = Telling(1000)
    telling.desk.submit(submission(1, output=100))
    while telling.desk.plan() is not None:
        pass
    for _ in range(5):
        telling.tell(msgspec.structs.replace(telling.desk.result(), compute_us=0), 6)
    assert telling.lengths == [1] * 5


def test_a_stream_that_goes_on_after_it_lost_its_cache_is_told_at_once() -> None:
    telling = Telling(1000)
    telling.begin(1)
    telling.tell(ExecutorLost())
    telling.desk.executor = type(telling.desk.executor)(telling.desk.executor.geometry)
    telling.tell(telling.desk.executor.geometry)
    telling.bundle.take(telling.desk.now_ns)
    telling.told.clear()
    telling.steps(3, 6)
    assert telling.lengths == [1]


@pytest.mark.parametrize(
    ("before", "after", "runs"),
    [
        (TokenRun(stream(1), 0, 3, (7,)), TokenRun(stream(1), 0, 4, (8,), End.LENGTH, "", 5, 6), 1),
        (TokenRun(stream(1), 0, 3, (7,)), TokenRun(stream(1), 0, 4, (), End.ERROR, "why"), 1),
        (TokenRun(stream(1), 0, 3, (7,)), TokenRun(stream(1), 0, 3, (7, 8)), 2),
        (TokenRun(stream(1), 0, 3, (7,)), TokenRun(stream(1), 0, 5, (9,)), 2),
        (TokenRun(stream(1), 0, 3, (7,)), TokenRun(stream(1), 1, 4, (8,)), 2),
        (TokenRun(stream(1), 0, 3, (7,), End.LENGTH), TokenRun(stream(1), 0, 4, (), End.LENGTH), 2),
        (TokenRun(stream(1), 0, 3, (7,)), TokenRun(stream(1), 0, 4, (8,), likelihoods=(TokenLogprob(-1.0),)), 2),
        (TokenRun(stream(1), 0, 3, (7,)), TokenRun(stream(2), 0, 4, (8,)), 2),
    ],
)
def test_only_what_continues_a_run_is_joined_to_it(before: TokenRun, after: TokenRun, runs: int) -> None:
    bundle = TokenBatches(Desk().core.view, 0)
    bundle.add(before, asked=True)
    bundle.add(after, asked=True)
    told = bundle.take(0)
    assert len(told) == runs
    if runs == 1:
        assert told == (msgspec.structs.replace(after, start=3, ids=(7, *after.ids)),)
    else:
        assert told == (before, after)


def test_likelihoods_of_joined_runs_follow_their_ids() -> None:
    bundle = TokenBatches(Desk().core.view, 0)
    for position in range(3):
        likelihoods = (TokenLogprob(-float(position)),)
        bundle.add(TokenRun(stream(1), 0, position, (position,), likelihoods=likelihoods), asked=True)
    (run,) = bundle.take(0)
    assert (run.start, run.ids) == (0, (0, 1, 2))
    assert [each.logprob for each in run.likelihoods] == [0.0, -1.0, -2.0]


def test_what_is_to_be_told_otherwise_is_taken_back() -> None:
    bundle = TokenBatches(Desk().core.view, 0)
    for number in (1, 2, 1):
        bundle.add(TokenRun(stream(number), 0, number, (number,)), asked=True)
    assert [run.stream for run in bundle.drop({stream(1)})] == [stream(1), stream(1)]
    assert [run.stream for run in bundle.take(0)] == [stream(2)]
