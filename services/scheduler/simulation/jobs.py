"""What a simulation is given, and what became of it: one request for each stream. Times are nanoseconds of simulated time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from noria.proto.base import End, Stream
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Reclaimed, Spent, Submission
from noria.services.scheduler.core.interface.events import RequestPhase, SchedulerReply, StreamPhaseChanged

# Simulated ids are made of stream and position, so that no two prompts share a page by accident.
_IDS_PER_STREAM = 1 << 22


class SimulatedRequest(msgspec.Struct, frozen=True):
    """A stream that arrives at `at_ns` and would generate `output_tokens` if nobody stopped it.

    stops: it ends by an end id before `max_tokens`. withdrawn_ns: its client went away then. submission: as admission
    writes it; its prompt ids may be made up.
    """

    at_ns: int
    submission: Submission
    output_tokens: int
    stops: bool = False
    withdrawn_ns: int | None = None


@dataclass(slots=True, eq=False)
class SimulatedOutcome:
    """What became of a request. started_ns: its first step was planned. gaps_ns: between one token and the next.

    end: None when it was never accepted (`refused`), or the simulation ended before it did.
    """

    job: SimulatedRequest
    refused: bool = False
    started_ns: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None
    ended_ns: int | None = None
    tokens: int = 0
    end: End | None = None
    gaps_ns: list[int] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token."""
        return None if self.first_ns is None else (self.first_ns - self.job.at_ns) / 1e6

    @property
    def itl_ms(self) -> float:
        """Mean time between tokens; 0 with fewer than two."""
        if self.first_ns is None or self.last_ns is None or self.tokens < 2:
            return 0.0
        return (self.last_ns - self.first_ns) / (self.tokens - 1) / 1e6

    @property
    def total_ms(self) -> float | None:
        """Time to the last token of one that was served to its end."""
        return (self.last_ns - self.job.at_ns) / 1e6 if self.served and self.last_ns is not None else None

    @property
    def served(self) -> bool:
        """Whether it got all its tokens."""
        return self.end in (End.STOP, End.LENGTH)


class OutcomeRecorder:
    """Keeps what a core's replies mean for each request. outcomes: in the order of the requests."""

    def __init__(self, jobs: Iterable[SimulatedRequest]) -> None:
        self.outcomes = [SimulatedOutcome(each) for each in jobs]
        self.by_stream = {each.job.submission.stream: each for each in self.outcomes}
        self._ended: list[Stream] = []

    def record(self, replies: Iterable[SchedulerReply], now_ns: int) -> None:
        """Take the replies to one event."""
        for reply in replies:
            match reply:
                case TokenRun():
                    self._run(reply, now_ns)
                case StreamPhaseChanged():
                    outcome = self.by_stream.get(reply.stream)
                    if outcome is not None and reply.phase is RequestPhase.PREFILLING and outcome.started_ns is None:
                        outcome.started_ns = reply.at_ns
                case Reclaimed() | Spent():
                    pass
                case _:
                    assert_never(reply)

    def take_ended(self) -> tuple[Stream, ...]:
        """The streams whose end was replied since last asked."""
        ended, self._ended = tuple(self._ended), []
        return ended

    def _run(self, run: TokenRun, now_ns: int) -> None:
        outcome = self.by_stream.get(run.stream)
        if outcome is None or run.start + len(run.ids) < outcome.tokens:
            return
        if run.ids:
            if outcome.last_ns is not None:
                outcome.gaps_ns.append(now_ns - outcome.last_ns)
            else:
                outcome.first_ns = now_ns
            outcome.last_ns = now_ns
            outcome.tokens += len(run.ids)
        if run.end and outcome.end is None:
            outcome.end, outcome.ended_ns = End(run.end), now_ns
            self._ended.append(run.stream)


def made_up_ids(number: int, first: int, count: int) -> tuple[int, ...]:
    """Ids that no other stream has: `count` of them from position `first` of stream `number`."""
    start = (number + 1) * _IDS_PER_STREAM + first
    return tuple(range(start, start + count))


def simulated_request(
    number: int,
    at_ns: int,
    prompt_tokens: int,
    output_tokens: int,
    *,
    traffic_class: str = "",
    tenant: str = "",
    ttl_first_ms: int | None = None,
    ttl_ms: int | None = None,
    max_tokens: int | None = None,
) -> SimulatedRequest:
    """A request with a prompt that nobody shares. It ends by length unless `max_tokens` is more than its output."""
    most = output_tokens if max_tokens is None else max_tokens
    submission = Submission(
        stream=Stream(number, 0),
        attempt=0,
        prompt_ids=made_up_ids(number, 0, prompt_tokens),
        sampling=Sampling(seed=number, max_tokens=most),
        end_ids=(0,) if output_tokens < most else (),
        tenant=tenant,
        traffic_class=traffic_class,
        ttl_first_ms=ttl_first_ms,
        ttl_ms=ttl_ms,
    )
    return SimulatedRequest(at_ns, submission, output_tokens, output_tokens < most)
