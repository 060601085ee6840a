"""A scheduler core on a desk: helpers that submit, plan and answer by hand, checking invariants after every move."""

from fakes.executor import FakeExecutor, alone, geometry

from noria.proto.base import End, Stream
from noria.proto.execution import Geometry, StepDone, StepPlan
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Reclaimed, Submission, Submit
from noria.services.scheduler.core.interface.events import EventBody, SchedulerEvent, SchedulerReply, StreamPhaseChanged
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler


def stream(number: int) -> Stream:
    """A stream by number."""
    return Stream(number, 0)


def submission(
    number: int,
    prompt: int = 4,
    output: int = 4,
    *,
    end_ids: tuple[int, ...] = (),
    stop_strings: bool = False,
    min_tokens: int = 0,
    output_ids: tuple[int, ...] = (),
    seniority_ms: int = 0,
    attempt: int = 0,
) -> Submission:
    """A stream of `prompt` prompt tokens that generates `output` tokens; without end ids it ends by length alone."""
    return Submission(
        stream=stream(number),
        attempt=attempt,
        prompt_ids=tuple(1 + (number + each) % 31 for each in range(prompt)),
        sampling=Sampling(max_tokens=output, min_tokens=min_tokens, seed=number),
        end_ids=end_ids,
        has_stop_strings=stop_strings,
        output_ids=output_ids,
        seniority_ms=seniority_ms,
    )


def generated(each: Submission) -> list[int]:
    """What a submission generates alone."""
    assert each.sampling.max_tokens is not None
    return alone(each.prompt_ids, each.sampling, each.end_ids, each.sampling.max_tokens)


def ending_after(number: int, tokens: int, *, prompt: int = 4, output: int = 20) -> Submission:
    """A stream that an end id stops after exactly `tokens` tokens, long before its length."""
    plain = submission(number, prompt, output)
    ids = generated(plain)
    assert ids[tokens - 1] not in ids[: tokens - 1], "choose another number"
    return submission(number, prompt, output, end_ids=(ids[tokens - 1],))


class Desk:
    """A core, the fake executor, and everything said so far."""

    def __init__(
        self, settings: CoreSettings | None = None, shape: Geometry | None = None, *, join: bool = True
    ) -> None:
        self.core = Scheduler(settings or CoreSettings())
        self.executor = FakeExecutor(shape or geometry())
        self.now_ns = 0
        self.replies: list[SchedulerReply] = []
        self.plans: list[StepPlan] = []
        if join:
            self.tell(self.executor.geometry)

    @property
    def passed_over(self) -> int:
        """How many requests wait for a prefix that another one computes."""
        return len(self.core.state.waiting._passed)

    def tell(self, body: EventBody) -> list[SchedulerReply]:
        """Apply an event one millisecond later."""
        self.now_ns += 1_000_000
        replies = self.core.apply(SchedulerEvent(self.now_ns, body))
        self.core.check()
        self.replies += replies
        return replies

    def submit(self, *submissions: Submission) -> None:
        """Submit in one message."""
        self.tell(Submit(submissions))

    def plan(self) -> StepPlan | None:
        """Plan one step and send it."""
        plan = self.core.plan(self.now_ns)
        self.core.check()
        if plan is not None:
            self.plans.append(plan)
            self.executor.send(plan)
        return plan

    def planned(self) -> StepPlan:
        """Plan one step that must be there."""
        plan = self.plan()
        assert plan is not None
        return plan

    def done(self) -> list[SchedulerReply]:
        """The oldest step in flight is done."""
        return self.tell(self.executor.step())

    def result(self) -> StepDone:
        """Compute the oldest step without telling the core."""
        return self.executor.step()

    def run(self, steps: int = 1000) -> None:
        """Plan and compute until nothing is left to do."""
        for _ in range(steps):
            while self.plan() is not None:
                pass
            if not self.executor.queued:
                return
            self.done()

    def lengths(self, plan: StepPlan) -> dict[int, int]:
        """Tokens planned for each request number; the slots' streams are those of the fills so far."""
        filled: dict[int, int] = {}
        for each in self.plans[: self.plans.index(plan) + 1]:
            filled = {slot: number for slot, number in filled.items() if slot not in each.release}
            filled.update({fill.slot: fill.stream.request for fill in each.fill})
        return {filled[each.slot]: each.length for each in plan.slices}

    def output(self, number: int) -> list[int]:
        """All ids told of a stream."""
        return [token for run in self.runs(number) for token in run.ids]

    def end(self, number: int) -> End | None:
        """The end told of a stream."""
        ends = [End(run.end) for run in self.runs(number) if run.end]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def runs(self, number: int) -> list[TokenRun]:
        """Token runs told of a stream."""
        return [each for each in self.replies if isinstance(each, TokenRun) and each.stream.request == number]

    def reclaims(self) -> list[Reclaimed]:
        """Reclaims told."""
        return [each for each in self.replies if isinstance(each, Reclaimed)]

    def moves(self, number: int) -> list[StreamPhaseChanged]:
        """Stages told of a stream."""
        return [each for each in self.replies if isinstance(each, StreamPhaseChanged) and each.stream.request == number]
