"""A crowd of tenants in front of one core, served by an executor that answers at once; service is measured from plans.

What each tenant was served is counted here from slices alone, by the published prices, independently of the core's own
counters. A tenant contends at a step when some of its requests wait or have prompt left after it. The scheduler may die: the
next one is told what is unfinished, as admission would, and takes over what the executor holds.
"""

from collections import deque
from dataclasses import dataclass, field

from fakes.executor import FakeExecutor, geometry
from msgspec.structs import replace

from noria.proto.base import Ended, Stream
from noria.proto.execution import Sampled, StepDone, StepPlan
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.scheduler.core.interface.events import AdmissionJoined, EventBody, SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler

Party = tuple[str, str]  # class, tenant


@dataclass(frozen=True)
class Arrival:
    """A request of a party: it comes before that step."""

    step: int
    party: Party
    prompt: int
    output: int


@dataclass
class Crowd:
    """Runs arrivals to their end. served: by party, after each step; contending: who wanted more after each step.

    deaths: the steps before which the scheduler dies.
    """

    settings: CoreSettings
    blocks: int = 4096
    page_size: int = 4
    served: list[dict[Party, float]] = field(default_factory=list)
    contending: list[set[Party]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    deaths: frozenset[int] = frozenset()
    adopted: int = 0

    def run(self, arrivals: list[Arrival], steps_max: int = 20_000) -> None:
        """Until all ended."""
        self.core = Scheduler(self.settings)
        self.geometry = geometry(num_blocks=self.blocks, page_size=self.page_size, max_slots=64)
        self.core.apply(SchedulerEvent(0, self.geometry))
        self._executor = FakeExecutor(self.geometry) if self.deaths else None
        self._heard: dict[Stream, list[int]] = {}
        self.parties: dict[Stream, Party] = {}
        self.submissions: dict[Stream, Submission] = {}
        self._arrived: dict[Stream, int] = {}
        self._slots: dict[int, tuple[Stream, int]] = {}
        self._positions: dict[Stream, int] = {}
        self._outputs: dict[Stream, int] = {}
        self._totals: dict[Party, float] = {}
        self._in_flight: deque[StepDone] = deque()
        todo = deque(sorted(enumerate(arrivals), key=lambda each: each[1].step))
        for step in range(steps_max):
            if step in self.deaths:
                self._die(step)
            self._submit(todo, step)
            while (plan := self.core.plan(step * 1_000_000)) is not None:
                self._in_flight.append(self._answer(plan))
                self._note(plan)
            if not self._in_flight:
                if not todo:
                    assert not self.core.state.requests, "somebody waits for ever"
                    return
                continue
            self._collect(self._in_flight.popleft(), step)
        raise AssertionError("it does not end")

    def _die(self, step: int) -> None:
        """What is in flight, nobody hears of but the executor; admission names what is unfinished, oldest first."""
        assert self._executor is not None
        self._in_flight.clear()
        prices = self.settings.rules.prices
        again = []
        for stream in self.core.state.requests:
            asked, output = self.submissions[stream], self._heard.get(stream, [])
            prompt = len(asked.prompt_ids) * prices.prompt
            again.append(
                replace(
                    asked,
                    output_ids=tuple(output),
                    service=prompt + len(output) * prices.output if output else 0.0,
                    seniority_ms=step - self._arrived[stream],
                )
            )
        self.core = Scheduler(self.settings)
        for body in (
            AdmissionJoined(),
            replace(self.geometry, inventory=True),
            self._executor.inventory(),
            Submit(tuple(again), complete=True),
        ):
            self._tell(step, body)
        self.adopted += self.core.state.counters.adopted

    def spread(self, one: Party, other: Party, weights: tuple[float, float]) -> float:
        """The largest difference in weighted service over any time in which both contended throughout."""
        most, lowest, highest = 0.0, None, None
        for served, contending in zip(self.served, self.contending, strict=True):
            if one not in contending or other not in contending:
                lowest = highest = None
                continue
            lead = served.get(one, 0.0) / weights[0] - served.get(other, 0.0) / weights[1]
            lowest = lead if lowest is None else min(lowest, lead)
            highest = lead if highest is None else max(highest, lead)
            most = max(most, highest - lowest)
        return most

    def _submit(self, todo: deque[tuple[int, Arrival]], step: int) -> None:
        while todo and todo[0][1].step <= step:
            number, each = todo.popleft()
            traffic_class, tenant = each.party
            stream = Stream(number, 0)
            prompt = (number + 1, *range(each.prompt - 1))
            sampling = Sampling(max_tokens=each.output, seed=number)
            submission = Submission(stream, 0, prompt, sampling, tenant=tenant, traffic_class=traffic_class)
            self.parties[stream], self.submissions[stream] = each.party, submission
            self._arrived[stream] = step
            self._tell(step, Submit((submission,)))

    def _answer(self, plan: StepPlan) -> StepDone:
        for fill in plan.fill:
            self._slots[fill.slot] = (fill.stream, len(fill.output_ids))
            self.starts.setdefault(fill.stream.request, len(self.served))
        sampled = []
        for each in plan.slices:
            stream, output = self._slots[each.slot]
            self._measure(stream, each.start, each.start + each.length)
            if each.sample:
                sampled.append(Sampled(stream, 0, output, (5,)))
                self._slots[each.slot] = (stream, output + 1)
                if output >= self._outputs.get(stream, 0):
                    self._outputs[stream] = output + 1
                    self._charge(stream, self.settings.rules.prices.output)
        if self._executor is not None:
            self._executor.send(plan)
            return self._executor.step()
        return StepDone(plan.epoch, plan.number, tuple(sampled), 100)

    def _measure(self, stream: Stream, start: int, end: int) -> None:
        prices, known = self.settings.rules.prices, self._positions.get(stream, 0)
        last = len(self.submissions[stream].prompt_ids)
        found = min(start, last)
        if found > known:
            self._charge(stream, (found - known) * prices.cached)
        new = min(end, last) - max(start, known)
        if new > 0:
            self._charge(stream, new * prices.prompt)
        self._positions[stream] = max(known, min(end, last))

    def _charge(self, stream: Stream, amount: float) -> None:
        party = self.parties[stream]
        self._totals[party] = self._totals.get(party, 0.0) + amount

    def _note(self, plan: StepPlan) -> None:
        board = self.core.state
        self.served.append(dict(self._totals))
        wanting = {self.parties[each.stream] for each in board.waiting}
        wanting |= {self.parties[each.stream] for each in board.prefilling}
        self.contending.append(wanting)
        self.tokens.append(sum(each.length for each in plan.slices))

    def _collect(self, done: StepDone, step: int) -> None:
        self._tell(step, done)
        if step % 16 == 0:
            self.core.check()

    def _tell(self, step: int, body: EventBody) -> None:
        """Apply an event, and have the ledger hear of tokens and ends."""
        ended = []
        for reply in self.core.apply(SchedulerEvent(step * 1_000_000, body)):
            if isinstance(reply, TokenRun):
                self._heard.setdefault(reply.stream, []).extend(reply.ids)
                if reply.end:
                    ended.append(reply.stream)
        if ended:
            self.core.apply(SchedulerEvent(step * 1_000_000, Ended(tuple(ended))))
            self.ends.update((stream.request, len(self.served)) for stream in ended)
