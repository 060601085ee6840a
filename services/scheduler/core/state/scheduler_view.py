"""What observers may see of the scheduler: values, read at the time of asking, and nothing that could be changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from noria.proto.base import Stream
from noria.services.scheduler.core.cache.request_blocks import BlockStateCounts
from noria.services.scheduler.core.interface.traffic_rules import AccountStanding, FairRules
from noria.services.scheduler.core.state.counters import SchedulerCounters
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice
from noria.services.scheduler.core.state.request import Request, RequestStatus
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.step_decisions import StepDecision, WaitReason


class RequestView(NamedTuple):
    """One request as it stands."""

    stream: Stream
    traffic_class: str
    tenant: str
    state: RequestStatus
    prompt_tokens: int
    output_tokens: int
    # Prompt tokens that were in the cache when it was first admitted.
    cached_tokens: int
    # When it was received, in nanoseconds.
    received_ns: int
    # Whether it has ever been given a slot.
    started: bool
    has_stop_strings: bool


class StepSize(NamedTuple):
    """How much a step computes: query tokens, cached tokens read, requests, pairs of the two in chunks of prompts."""

    tokens: int
    cache_tokens: int
    requests: int
    pairs: int


@dataclass(frozen=True, slots=True)
class SchedulerCounts:
    """How many there are of what, zero when no request is alive; `slots` and `epoch` aside."""

    waiting: int
    running: int
    finished: int
    # All slots, those that the executor believes filled, and those that the next plan can fill.
    slots: int
    slots_used: int
    slots_free: int
    # Blocks that requests hold, or that a step in flight still touches.
    blocks_used: int
    steps_in_flight: int
    epoch: int


class SchedulerView:
    """Reads a scheduler's state for metrics, spans, the event log, the history of requests and the live view."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def counts(self) -> SchedulerCounts:
        """The present numbers of requests, slots, blocks and steps."""
        state = self._state
        return SchedulerCounts(
            waiting=len(state.waiting),
            running=state.running,
            finished=state.finished,
            slots=state.slots.count,
            slots_used=state.slots.used,
            slots_free=state.slots.free,
            blocks_used=state.memory.cache.used if state.memory is not None else 0,
            steps_in_flight=len(state.in_flight.steps),
            epoch=state.in_flight.epoch,
        )

    def counters(self) -> SchedulerCounters:
        """What has happened since the start."""
        return replace(self._state.counters)

    @property
    def steps(self) -> int:
        """How many steps were done since the start."""
        return self._state.counters.steps

    @property
    def tokens(self) -> int:
        """How many query tokens were computed since the start."""
        return self._state.counters.tokens

    @property
    def adopted(self) -> int:
        """How many streams' caches were taken over since the start."""
        return self._state.counters.adopted

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._state.running or len(self._state.waiting))

    def request(self, stream: Stream) -> RequestView | None:
        """One request; None when it is not known, or not any more."""
        request = self._state.requests.get(stream)
        return _request_view(request) if request is not None else None

    def has_stop_strings(self, stream: Stream) -> bool | None:
        """Whether a stream has stop strings; None when it is not known. Cheap, for it is asked for every token."""
        request = self._state.requests.get(stream)
        return request.asked.has_stop_strings if request is not None else None

    def requests(self) -> Iterator[RequestView]:
        """Every request that is known."""
        return map(_request_view, self._state.requests.values())

    def waiting(self) -> Iterator[RequestView]:
        """Every request that waits."""
        return map(_request_view, self._state.waiting)

    @property
    def has_executor(self) -> bool:
        """Whether there is an executor's cache."""
        return self._state.memory is not None

    def blocks(self) -> list[BlockStateCounts]:
        """Blocks by state, for each group; empty without an executor."""
        return self._state.memory.counts() if self._state.memory is not None else []

    @property
    def reserved_pages(self) -> int:
        """Pages of each group that nobody but isolated classes may take."""
        cache = self._state.cache
        return self._state.policy.kept(cache.pages, cache.page_tokens) if cache is not None else 0

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self._state.policy.name

    @property
    def rules(self) -> FairRules:
        """The present classes and tenants."""
        return self._state.policy.rules

    def standings(self) -> list[AccountStanding]:
        """How much everybody has been served; empty under policies that do not count."""
        return self._state.policy.standings()

    @property
    def last_decision(self) -> StepDecision | None:
        """What the step sent last is made of, and who was passed over; None before the first."""
        steps = self._state.decisions.steps
        return steps[-1] if steps else None

    def waits(self, traffic_class: str, begin_ns: int, end_ns: int) -> dict[WaitReason | None, int]:
        """For what a request of a class that waited from begin to end did so, and how long: nanoseconds by reason."""
        return self._state.decisions.waits(traffic_class, begin_ns, end_ns)

    @property
    def next_result_ns(self) -> int:
        """When the oldest step in flight is believed to be over; 0 without one, and where nobody knows."""
        return self._state.in_flight.next_ns

    def oldest_step(self, epoch: int, number: int) -> StepSize | None:
        """The size of the oldest step in flight, if it is this one."""
        in_flight = self._state.in_flight
        step = in_flight.steps[0] if in_flight.steps else None
        if step is None or (in_flight.epoch, step.number) != (epoch, number):
            return None
        return StepSize(step.tokens, step.cache_tokens, len(step.entries), step.pairs)

    @property
    def newest_slices(self) -> Sequence[InFlightSlice]:
        """The slices of the step sent last. Of their requests, only what was asked never changes."""
        return self._state.in_flight.steps[-1].entries


def _request_view(request: Request) -> RequestView:
    asked = request.asked
    return RequestView(
        request.stream,
        asked.submission.traffic_class,
        asked.submission.tenant,
        request.state,
        asked.prompt_tokens,
        len(request.progress.output),
        request.cache.cached_tokens,
        asked.received_ns,
        request.life.started_ns is not None,
        asked.has_stop_strings,
    )
