"""Admission, detokenizer and executor around one scheduler core, moved by one seed."""

import dataclasses
import random
from collections import Counter

from fakes.executor import EOS, FakeExecutor, alone, geometry, hybrid, likelihoods
from msgspec.structs import replace

from noria.proto.base import End, Ended, Stream
from noria.proto.execution import Failure, Geometry, Group, StepPlan
from noria.proto.output import Gap, Progress, Resend, TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Reclaimed, Submission, Submit, Withdraw
from noria.services.scheduler.core.interface.events import (
    AdmissionJoined,
    EventBody,
    ExecutorLost,
    PolicyChanged,
    SchedulerEvent,
    SchedulerReply,
)
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass
from noria.services.scheduler.core.scheduler import Scheduler

Log = list[SchedulerEvent | int]
TURNS_MAX = 6000


def draw_geometry(draw: random.Random, max_batch_tokens: int) -> Geometry:
    """Just more than the longest request (16 + 24 tokens) needs, up to several times that, for each kind of model."""
    page_size = draw.choice([1, 2, 4, 8])
    pages = draw.choice([40, 42, 56, 100]) // page_size + 1
    host_slots = draw.choice([0, 0, pages // 2, pages, 2 * pages])
    kind = draw.choice(["full", "full", "full", "two", "hybrid", "hybrid", "sliding"])
    window = draw.choice([1, 3, 8])
    per_chunk = draw.choice([(1, 1), (3, 1), (2, 4)])
    full, sliding = hybrid(window, page_size, max_batch_tokens, per_chunk)
    kinds = {"full": (Group(0, 1, per_chunk[0]),), "two": (Group(0, 1), Group(0, 1, 2))}
    kinds |= {"hybrid": (full, sliding), "sliding": (sliding,)}
    chunks = sum(-(-pages // each.blocks_per_chunk) for each in kinds[kind])
    return geometry(page_size=page_size, num_blocks=chunks + 2, kinds=kinds[kind], host_slots=host_slots)


def draw_rules(draw: random.Random) -> FairRules:
    """Classes of all kinds."""
    return FairRules(
        classes=(
            TrafficClass(
                "interactive",
                rank=2,
                weight=draw.choice([1.0, 4.0]),
                reserved_slots=draw.choice([0, 1, 3, 20]),
                reserved_cache=draw.choice([0.0, 0.2, 0.6]),
                preemptible=draw.random() < 0.3,
                itl_target_ms=draw.choice([None, 0.1]),
            ),
            TrafficClass("standard", quantum_tokens=draw.choice([None, 4])),
            TrafficClass(
                "batch",
                rank=0,
                weight=draw.choice([0.5, 1.0]),
                preemptible=draw.random() < 0.8,
                quantum_tokens=draw.choice([None, 1, 5]),
            ),
            TrafficClass(
                "admin",
                rank=3,
                reserved_slots=draw.choice([0, 1, 2]),
                reserved_cache=draw.choice([0.0, 0.1, 0.5]),
                isolated=True,
            ),
        )[draw.choice([0, 0, 0, 1]) :],
        tenants={"a": draw.choice([1.0, 3.0])},
        progress_tokens=draw.choice([1, 2, 8]),
    )


class World:
    """Admission, detokenizer and executor around one core, moved by one seed."""

    def __init__(
        self,
        seed: int,
        *,
        requests: int = 24,
        core: type[Scheduler] = Scheduler,
        failures: bool = True,
        fair: bool = False,
        deaths: float = 0.0,
    ) -> None:
        self.random = random.Random(seed)
        # The scheduler's deaths are drawn apart, too: so often in a turn.
        self.fate, self.deaths = random.Random(seed), deaths
        draw = self.random
        self.settings = CoreSettings(
            policy=draw.choice(["fifo", "prefill_first"]),
            max_batch_tokens=draw.choice([1, 2, 3, 7, 16, 64]),
            max_requests_per_batch=draw.choice([1, 2, 4, 8, 12]),
            max_cache_tokens=draw.choice([None, None, 40, 120]),
            steps_in_flight=draw.choice([1, 2]),
            stop_lookahead=draw.choice([1, 2, 4]),
            safety_margin=draw.choice([None, 0.0]),
            allow_block_sharing=draw.random() < 0.8,
        )
        # Classes and tenants are drawn apart, so that the other worlds are what they were.
        self.classes = random.Random(seed) if fair else None
        if self.classes is not None:
            self.settings = dataclasses.replace(self.settings, policy="fair", rules=draw_rules(self.classes))
        self.geometry = draw_geometry(draw, self.settings.max_batch_tokens)
        self.life = core
        self.core = core(self.settings)
        self.executor = FakeExecutor(self.geometry)
        self.failures = failures
        self.now_ns = 0
        self.log: Log = []
        self.plans: list[StepPlan] = []
        # Prompts are drawn from few beginnings, so that many share one.
        self.beginnings = [tuple(draw.randrange(1, 32) for _ in range(12)) for _ in range(3)]
        self.to_submit: list[Submission] = []
        for number in range(requests):
            self.to_submit.append(self._classed(self._submission(number)))
        self.submissions: dict[Stream, Submission] = {}
        self.received: dict[Stream, list[int]] = {}
        self.ends: dict[Stream, End] = {}
        self.withdrawn: set[Stream] = set()
        self.reclaimed: list[Reclaimed] = []
        self.silent = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Until everything ended and drained, or it hangs."""
        self.tell(self.geometry)
        for _ in range(TURNS_MAX):
            if not self.to_submit and not self.core.state.requests and not self.executor.queued:
                self.plan()
                while self.executor.queued:
                    self.tell(self.executor.step())
                return
            self.turn()
        raise AssertionError("the core hangs")

    def turn(self) -> None:
        draw = self.random.random()
        self.now_ns += self.random.randrange(1, 1_000_000)
        if self.deaths and self.fate.random() < self.deaths:
            self.restart()
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
            ended = tuple(stream for stream in self.ends if stream in self.core.state.requests)
            if ended:
                self.tell(Ended(ended))
        elif draw < 0.4:
            self.tell(Progress(tuple(Gap(each, len(self.received[each])) for each in self.alive())))
        elif draw < 0.403 and self.failures:
            self.disturb()
        elif draw < 0.41 and self.submissions:
            self.ask_again()
            if self.classes is not None:
                name = self.classes.choice(["fair", "fair", "fair", "fifo"])
                self.tell(PolicyChanged(name, draw_rules(self.classes)))
        elif self.executor.queued and draw < 0.75:
            self.tell(self.executor.step())
        else:
            self.plan()

    def _classed(self, each: Submission) -> Submission:
        if self.classes is None:
            return each
        name = self.classes.choice(["", *(one.name for one in self.settings.rules.classes), "unheard of"])
        return replace(each, traffic_class=name, tenant=self.classes.choice(["", "a", "b"]))

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

    def restart(self) -> None:
        """The scheduler dies with steps in flight; the executor, and admission, which may be behind, tell the next one.

        What the executor computes of them, nobody hears of. Which of the three comes first is drawn.
        """
        fate = self.fate
        for _ in range(fate.randrange(len(self.executor.queued) + 1)):
            self.executor.step()
        inventory = self.executor.inventory()
        living = [each for each in self.submissions if each in self.core.state.requests and each not in self.withdrawn]
        doubts = {each.stream: each.doubt for each in self.core.state.suspects.suspected_now.entries}
        again = []
        for stream in living:
            known, least = self.received[stream], len(self.submissions[stream].output_ids)
            if stream in self.ends:
                if fate.random() < 0.5:
                    continue  # the ledger knows its end
                del self.ends[stream]
            del known[max(least, len(known) - fate.choice([0, 0, 1, 2, 5])) :]
            asked = replace(
                self.submissions[stream], output_ids=tuple(known), service=float(len(known)), doubt=doubts.get(stream)
            )
            self.submissions[stream] = asked
            again.append(asked)
        self.counts["deaths"] += 1
        self.log, self.plans = [], []
        self.core = self.life(self.settings)
        told: list[list[EventBody]] = [[replace(self.geometry, inventory=True), inventory], [AdmissionJoined()]]
        cut = fate.randrange(len(again) + 1)
        told[1] += [Submit(tuple(again[:cut])), Submit(tuple(again[cut:]), complete=True)]
        if fate.random() < 0.1:
            told[0].pop()
            self.executor.epoch = 0
        while told[0] or told[1]:
            side = fate.choice([each for each in told if each])
            self.tell(side.pop(0))
            self.plan()
        if self.executor.epoch == 0:
            self.now_ns += self.settings.adoption_wait_ns
        counters = self.core.state.counters
        self.counts["adopted"] += counters.adopted
        self.counts["adopted tokens"] += counters.adopted_tokens

    def ask_again(self) -> None:
        """Neighbours that lost their memory: admission submits what is unfinished, the detokenizer asks for ids."""
        stream = self.random.choice(list(self.submissions))
        start = self.random.randrange(len(self.received[stream]) + 1)
        known = self.core.state.requests.get(stream)
        self.log.append(event := SchedulerEvent(self.now_ns, Resend((Gap(stream, start),))))
        runs = [each for each in self.core.apply(event) if isinstance(each, TokenRun)]
        if known is not None:
            assert [token for run in runs for token in run.ids] == self.received[stream][start:]
            assert [run.end for run in runs if run.end] == [self.ends[each] for each in [stream] if each in self.ends]
            if start >= len(self.submissions[stream].output_ids):
                self.check_likelihoods(runs)
        self.tell(AdmissionJoined())
        unfinished = [replace(self.submissions[each], output_ids=tuple(self.received[each])) for each in self.alive()]
        self.tell(Submit(tuple(unfinished)))

    def alive(self) -> list[Stream]:
        return [each for each in self.submissions if each not in self.ends and each not in self.withdrawn]

    def tell(self, body: EventBody) -> None:
        event = SchedulerEvent(self.now_ns, body)
        self.log.append(event)
        for reply in self.core.apply(event):
            self.hear(reply)
        self.core.check()

    def plan(self) -> None:
        while True:
            self.log.append(self.now_ns)
            plan = self.core.plan(self.now_ns)
            if plan is None:
                return
            self.core.check()
            self.plans.append(plan)
            self.executor.send(plan)

    def hear(self, reply: SchedulerReply) -> None:
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
            self.check_likelihoods([reply])
            if reply.end:
                self.ends[reply.stream] = End(reply.end)

    def check_likelihoods(self, runs: list[TokenRun]) -> None:
        """They come with the ids that they belong to, to those who asked."""
        for run in runs:
            asks = self.submissions[run.stream].sampling.logprobs is not None
            assert run.likelihoods == (likelihoods(run.ids) if asks else ())

    def _submission(self, number: int) -> Submission:
        draw = self.random
        if self.to_submit and draw.random() < 0.15:
            # Asked again: prompt and output are the same, page by page.
            return replace(draw.choice(self.to_submit), stream=Stream(number, 0))
        length = draw.choice([1, 2, 5, 9, 16])
        prompt = tuple(draw.randrange(1, 32) for _ in range(length))
        if draw.random() < 0.7:
            prompt = (draw.choice(self.beginnings)[: draw.choice([4, 8, 12])] + prompt)[:16]
        maximum = draw.randrange(1, 25)
        minimum = draw.choice([0, 0, min(4, maximum)])
        sampling = Sampling(
            seed=number, max_tokens=maximum, min_tokens=minimum, logprobs=None if number % 3 else number % 2
        )
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
        board = self.core.state
        assert not board.requests and not board.running and not board.finished and not len(board.waiting)
        assert board.waiting.tokens == 0
        assert board.cache is not None
        assert board.cache.used == 0
        assert board.cache.available == board.cache.size
        assert board.slots.used == 0
        assert self.executor.slots == 0
