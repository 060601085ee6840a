"""The scheduler core alone against an executor that keeps a true map of its cache, from seeds."""

import random

import pytest
from fakes.executor import EOS, FakeExecutor, alone, geometry, hybrid
from msgspec.structs import replace

from noria.proto.base import End, Ended, Sampling, Stream
from noria.proto.execution import Failure, Geometry, Group, StepDone, StepPlan
from noria.proto.output import Gap, Progress, Resend, TokenRun
from noria.proto.scheduling import Reclaimed, Submission, Submit, Withdraw
from noria.services.scheduler.core.cache import Holding
from noria.services.scheduler.core.events import AdmissionJoined, Body, Event, ExecutorLost, Reply
from noria.services.scheduler.core.request import Request
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.settings import Settings

Log = list[Event | int]
TURNS_MAX = 6000


def draw_geometry(draw: random.Random, max_batch_tokens: int) -> Geometry:
    """Just more than the longest request (16 + 24 tokens) needs, up to several times that, for each kind of model."""
    page_size = draw.choice([1, 2, 4, 8])
    pages = draw.choice([40, 48, 80, 160]) // page_size + 1
    host_slots = draw.choice([0, 0, pages // 2, pages])
    kind = draw.choice(["full", "full", "full", "two", "hybrid", "hybrid", "sliding"])
    window = draw.choice([1, 3, 8])
    per_chunk = draw.choice([(1, 1), (3, 1), (2, 4)])
    full, sliding = hybrid(window, page_size, max_batch_tokens, per_chunk)
    kinds = {"full": (Group(0, 1, per_chunk[0]),), "two": (Group(0, 1), Group(0, 1, 2))}
    kinds |= {"hybrid": (full, sliding), "sliding": (sliding,)}
    chunks = sum(-(-pages // each.blocks_per_chunk) for each in kinds[kind])
    return geometry(page_size=page_size, num_blocks=chunks + 2, kinds=kinds[kind], host_slots=host_slots)


class World:
    """Admission, detokenizer and executor around one core, moved by one seed."""

    def __init__(
        self, seed: int, *, requests: int = 24, core: type[Scheduler] = Scheduler, failures: bool = True
    ) -> None:
        self.random = random.Random(seed)
        draw = self.random
        self.settings = Settings(
            policy=draw.choice(["fifo", "prefill_first"]),
            max_batch_tokens=draw.choice([1, 2, 3, 7, 16, 64]),
            max_requests_per_batch=draw.choice([1, 2, 4, 8, 12]),
            max_cache_tokens=draw.choice([None, None, 40, 120]),
            steps_in_flight=draw.choice([1, 2]),
            stop_lookahead=draw.choice([1, 2, 4]),
            allow_block_sharing=draw.random() < 0.8,
        )
        self.geometry = draw_geometry(draw, self.settings.max_batch_tokens)
        self.core = core(self.settings)
        self.executor = FakeExecutor(self.geometry)
        self.failures = failures
        self.now_ns = 0
        self.log: Log = []
        self.plans: list[StepPlan] = []
        # Prompts are drawn from few beginnings, so that many share one.
        self.beginnings = [tuple(draw.randrange(1, 32) for _ in range(12)) for _ in range(3)]
        self.to_submit = [self._submission(number) for number in range(requests)]
        self.submissions: dict[Stream, Submission] = {}
        self.received: dict[Stream, list[int]] = {}
        self.ends: dict[Stream, End] = {}
        self.withdrawn: set[Stream] = set()
        self.reclaimed: list[Reclaimed] = []
        self.silent = 0

    def run(self) -> None:
        """Until everything ended and drained, or it hangs."""
        self.tell(self.geometry)
        for _ in range(TURNS_MAX):
            if not self.to_submit and not self.core.board.requests and not self.executor.queued:
                self.plan()
                while self.executor.queued:
                    self.tell(self.executor.step())
                return
            self.turn()
        raise AssertionError("the core hangs")

    def turn(self) -> None:
        draw = self.random.random()
        self.now_ns += self.random.randrange(1, 1_000_000)
        if draw < 0.15:
            if not self.to_submit:
                return
            count = self.random.randrange(1, 5)
            batch, self.to_submit = tuple(self.to_submit[:count]), self.to_submit[count:]
            self.submissions.update((each.stream, each) for each in batch)
            self.received.update((each.stream, list(each.output_ids)) for each in batch)
            self.tell(Submit(batch))
        elif draw < 0.152 and self.alive():
            stream = self.random.choice(self.alive())
            self.withdrawn.add(stream)
            self.tell(Withdraw((stream,)))
        elif draw < 0.27:
            ended = tuple(stream for stream in self.ends if stream in self.core.board.requests)
            if ended:
                self.tell(Ended(ended))
        elif draw < 0.4:
            self.tell(Progress(tuple(Gap(each, len(self.received[each])) for each in self.alive())))
        elif draw < 0.403 and self.failures:
            self.disturb()
        elif draw < 0.41 and self.submissions:
            self.ask_again()
        elif self.executor.queued and draw < 0.75:
            self.tell(self.executor.step())
        else:
            self.plan()

    def disturb(self) -> None:
        kind = self.random.randrange(4)
        if kind == 0 and self.executor.queued:
            self.tell(self.executor.fail(Failure.MEMORY))
        elif kind == 3 and self.executor.queued:
            self.tell(self.executor.fail(Failure.ERROR))
        elif kind == 1 and len(self.executor.queued) == 2:
            self.executor.step()
            self.tell(self.executor.fail(Failure.INVALID))
        elif kind == 2:
            stale = self.executor.step() if self.executor.queued else None
            self.executor = FakeExecutor(self.geometry)
            self.tell(ExecutorLost())
            self.tell(self.geometry)
            if stale is not None:
                self.tell(stale)

    def ask_again(self) -> None:
        """Neighbours that lost their memory: admission submits what is unfinished, the detokenizer asks for ids."""
        stream = self.random.choice(list(self.submissions))
        start = self.random.randrange(len(self.received[stream]) + 1)
        known = self.core.board.requests.get(stream)
        self.log.append(event := Event(self.now_ns, Resend((Gap(stream, start),))))
        runs = [each for each in self.core.apply(event) if isinstance(each, TokenRun)]
        if known is not None:
            assert [token for run in runs for token in run.ids] == self.received[stream][start:]
            assert [run.end for run in runs if run.end] == [self.ends[each] for each in [stream] if each in self.ends]
        self.tell(AdmissionJoined())
        unfinished = [replace(self.submissions[each], output_ids=tuple(self.received[each])) for each in self.alive()]
        self.tell(Submit(tuple(unfinished)))

    def alive(self) -> list[Stream]:
        return [each for each in self.submissions if each not in self.ends and each not in self.withdrawn]

    def tell(self, body: Body) -> None:
        event = Event(self.now_ns, body)
        self.log.append(event)
        for reply in self.core.apply(event):
            self.hear(reply)
        self.core.check()

    def plan(self) -> None:
        while True:
            self.log.append(self.now_ns)
            plan = self.core.plan(self.now_ns)
            self.core.check()
            if plan is None:
                return
            self.plans.append(plan)
            self.executor.send(plan)

    def hear(self, reply: Reply) -> None:
        if isinstance(reply, Reclaimed):
            assert reply.stream in self.withdrawn or reply.stream in self.ends
            assert reply.steps <= 2
            self.reclaimed.append(reply)
        elif isinstance(reply, TokenRun):
            if reply.stream in self.withdrawn:
                return
            received = self.received[reply.stream]
            assert reply.start == len(received), "tokens come in order, each once"
            assert reply.stream not in self.ends, "nothing comes after the end"
            received.extend(reply.ids)
            if reply.end:
                self.ends[reply.stream] = End(reply.end)

    def _submission(self, number: int) -> Submission:
        draw = self.random
        length = draw.choice([1, 2, 5, 9, 16])
        prompt = tuple(draw.randrange(1, 32) for _ in range(length))
        if draw.random() < 0.7:
            prompt = (draw.choice(self.beginnings)[: draw.choice([4, 8, 12])] + prompt)[:16]
        maximum = draw.randrange(1, 25)
        sampling = Sampling(seed=number, max_tokens=maximum, min_tokens=draw.choice([0, 0, min(4, maximum)]))
        end_ids = draw.choice([(EOS,), (EOS,), (), (EOS, 7)])
        output: tuple[int, ...] = ()
        if draw.random() < 0.2:
            whole = alone(prompt, sampling, end_ids, maximum)
            output = tuple(whole[: draw.randrange(len(whole) + 1)])
        return Submission(
            stream=Stream(number, draw.randrange(2)),
            attempt=0,
            prompt_ids=prompt,
            sampling=sampling,
            end_ids=end_ids,
            has_stop_strings=draw.random() < 0.3,
            output_ids=output,
            seniority_ms=draw.choice([0, 0, 5]),
            salt=draw.choice([b"", b"", b"another"]),
        )

    def verify(self) -> None:
        """Every finished stream has the tokens it has alone, and nothing is left."""
        for stream, submission in self.submissions.items():
            if stream in self.withdrawn and stream not in self.ends:
                continue
            maximum = submission.sampling.max_tokens
            assert maximum is not None
            whole = alone(submission.prompt_ids, submission.sampling, submission.end_ids, maximum)
            if self.ends[stream] is End.ERROR:
                assert whole[: len(self.received[stream])] == self.received[stream]
                assert self.failures
                continue
            assert self.received[stream] == whole
            stopped = whole[-1] in submission.end_ids and len(whole) >= submission.sampling.min_tokens
            assert self.ends[stream] is (End.STOP if stopped else End.LENGTH)
        board = self.core.board
        assert not board.requests and not board.running and not board.finished and not len(board.waiting)
        assert board.waiting.tokens == 0
        assert board.cache is not None
        assert board.cache.used == 0
        assert board.cache.available == board.cache.size
        assert board.slots.used == 0
        assert self.executor.slots == 0


@pytest.mark.parametrize("block", range(10))
def test_every_stream_has_the_tokens_it_has_alone_and_everything_drains(block: int) -> None:
    for seed in range(block * 6, block * 6 + 6):
        world = World(seed)
        try:
            world.run()
            world.verify()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {world.settings}: {error}") from error


class EarlyFree(Scheduler):
    """Frees the blocks of whoever leaves at once, though steps in flight still touch them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        lane = self.board.lane

        def retire(request: Request, holding: Holding, gain: int) -> None:
            assert self.board.cache is not None
            self.board.cache.release(holding)

        lane.retire = retire  # type: ignore[method-assign]  # the fault is planted here


class WrongCarry(Scheduler):
    """Reads the id of every fifth decode from what the slot was filled with."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None or plan.number % 5:
            return plan
        return replace(plan, slices=tuple(replace(each, carry=False) for each in plan.slices))


class StaleTable(Scheduler):
    """Does not tell the executor of some new blocks."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        return plan and replace(plan, grow=plan.grow[1:])


class SwappedTable(Scheduler):
    """Tells a slot's new blocks to its neighbour."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None or len(plan.grow) < 2:
            return plan
        first, second, *rest = plan.grow
        swapped = (replace(first, blocks=second.blocks), replace(second, blocks=first.blocks), *rest)
        return replace(plan, grow=swapped)


class SkippedPosition(Scheduler):
    """Now and then begins a chunk one position late."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        if plan is None or plan.number % 7:
            return plan
        late = (replace(each, start=each.start + (each.start > 0), carry=each.carry) for each in plan.slices)
        return replace(plan, slices=tuple(late))


class ForgottenReset(Scheduler):
    """Believes after a reset that the first position is still cached."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        admit = self.board.admit

        def admit_again(request: Request, pages: int, now_ns: int) -> None:
            again = request.started_ns is not None
            admit(request, pages, now_ns)
            request.length = max(request.length, int(again and request.known > 1))

        self.board.admit = admit_again  # type: ignore[method-assign]  # the fault is planted here


class LateRelease(Scheduler):
    """Forgets to name a slot's release."""

    def plan(self, now_ns: int) -> StepPlan | None:
        plan = super().plan(now_ns)
        return plan and replace(plan, release=plan.release[1:])


class DiscardedToken(Scheduler):
    """Drops the tokens that steps in flight bring for a request that was reset."""

    def apply(self, event: Event) -> list[Reply]:
        waiting = {request.stream for request in self.board.waiting}
        replies = super().apply(event)
        if not isinstance(event.body, StepDone):
            return replies
        return [each for each in replies if not (isinstance(each, TokenRun) and each.stream in waiting)]


FAULTS: list[type[Scheduler]] = [
    EarlyFree,
    WrongCarry,
    StaleTable,
    SwappedTable,
    SkippedPosition,
    ForgottenReset,
    LateRelease,
    DiscardedToken,
]


@pytest.mark.parametrize("core", FAULTS, ids=lambda core: core.__name__)
def test_a_planted_fault_is_noticed(core: type[Scheduler]) -> None:
    for seed in range(60):
        world = World(seed, core=core)
        try:
            world.run()
            world.verify()
        except (AssertionError, IndexError):
            return
    raise AssertionError(f"60 seeds did not notice {core.__doc__}")


@pytest.mark.parametrize("seed", range(6))
def test_a_recorded_event_log_gives_the_same_plans_again(seed: int) -> None:
    world = World(seed)
    world.run()
    again = Scheduler(world.settings)
    replayed = []
    for entry in world.log:
        if isinstance(entry, Event):
            again.apply(entry)
        elif (plan := again.plan(entry)) is not None:
            replayed.append(plan)
    assert replayed == world.plans
    assert len(replayed) > 50


def test_the_seeds_reach_resets_failures_discards_and_withdrawals() -> None:
    worlds = [World(seed) for seed in range(20)]
    for world in worlds:
        world.run()
    counted = [world.core.board.counters for world in worlds]
    assert sum(each.resets for each in counted) > 5
    assert sum(each.failed_steps for each in counted) > 5
    assert sum(each.discarded_slices for each in counted) > 5
    assert sum(each.reclaims for each in counted) > 5
    assert {world.settings.policy for world in worlds} == {"fifo", "prefill_first"}
    assert {world.settings.steps_in_flight for world in worlds} == {1, 2}
