"""Runs a workload through the real core on simulated time: arrivals, steps and withdrawals are the only events."""

import heapq
from collections.abc import Callable, Iterable

from noria.proto.base import End, Ended, Stream
from noria.proto.execution import Geometry
from noria.proto.scheduling import Capacity, Submit, Withdraw
from noria.services.scheduler.core.interface.events import EventBody, SchedulerEvent, TimePassed
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.state.scheduler_view import SchedulerView
from noria.services.scheduler.observe.event_log import EventLog
from noria.services.scheduler.simulation.device import SimulatedDevice, Token
from noria.services.scheduler.simulation.jobs import OutcomeRecorder, SimulatedOutcome, SimulatedRequest, made_up_ids

# Asked for each job as it arrives; a job that is not admitted is refused.
ArrivalGate = Callable[[SimulatedRequest, Capacity, int], bool]
_ARRIVAL, _WITHDRAWAL = 0, 1


def admit_all(job: SimulatedRequest, capacity: Capacity, now_ns: int) -> bool:
    """A gate that lets every request in."""
    del job, capacity, now_ns
    return True


class Simulation:
    """One core, one simulated device and the requests. outcomes: in the order of the requests.

    output: the ids that a stream generates, from its request and a position; made up where absent. record: begins a log of the
    run, like that of the scheduler.
    """

    def __init__(
        self,
        settings: CoreSettings,
        geometry: Geometry,
        device: Callable[[Token], SimulatedDevice],
        jobs: Iterable[SimulatedRequest],
        *,
        gate: ArrivalGate = admit_all,
        output: Callable[[SimulatedRequest, int], int] | None = None,
        record: Callable[[SchedulerView], EventLog] | None = None,
    ) -> None:
        self.core = Scheduler(settings)
        self._log = record(self.core.view) if record is not None else None
        self.device = device(self._token)
        self._recorder = OutcomeRecorder(jobs)
        self.outcomes = self._recorder.outcomes
        self.now_ns = 0
        self._gate = gate
        self._output = output
        self._due: list[tuple[int, int, int]] = []
        for number, outcome in enumerate(self.outcomes):
            heapq.heappush(self._due, (outcome.job.at_ns, _ARRIVAL, number))
            if outcome.job.withdrawn_ns is not None:
                heapq.heappush(self._due, (outcome.job.withdrawn_ns, _WITHDRAWAL, number))
        self._apply(geometry)

    @property
    def busy(self) -> bool:
        """Whether anything is still to happen."""
        return self._next_ns() is not None

    def run(self, until_ns: int | None = None) -> list[SimulatedOutcome]:
        """Run until all requests have ended, or to a time; returns the outcomes."""
        while (next_ns := self._next_ns()) is not None and (until_ns is None or next_ns <= until_ns):
            self.now_ns = next_ns
            self._step()
        if self._log is not None and next_ns is None:
            self._log.close()
        return self.outcomes

    def _next_ns(self) -> int | None:
        times = [self.device.next_ns, self._due[0][0] if self._due else None]
        if self.core.state.requests:
            times.append(self.core.due_ns)
        known = [each for each in times if each is not None]
        return max(min(known), self.now_ns) if known else None

    def _step(self) -> None:
        now_ns = self.now_ns
        done_ns = self.device.next_ns
        if done_ns is not None and done_ns <= now_ns:
            self._apply(self.device.finish())
        while self._due and self._due[0][0] <= now_ns:
            _, kind, number = heapq.heappop(self._due)
            self._happen(kind, self.outcomes[number])
        due_ns = self.core.due_ns
        if due_ns is not None and due_ns <= now_ns:
            self._apply(TimePassed())
        ended = self._recorder.take_ended()
        if ended:
            self._apply(Ended(ended))
        if self._log is not None:
            self._log.record_planning(now_ns)
        while (plan := self.core.plan(now_ns)) is not None:
            self.device.send(plan, now_ns)

    def _happen(self, kind: int, outcome: SimulatedOutcome) -> None:
        job = outcome.job
        if kind == _ARRIVAL:
            if self._gate(job, self.core.capacity(), self.now_ns):
                self._apply(Submit((job.submission,)))
            else:
                outcome.refused = True
        elif not outcome.refused and outcome.end is None:
            outcome.end, outcome.ended_ns = End.CANCELLED, self.now_ns
            self._apply(Withdraw((job.submission.stream,)))

    def _apply(self, body: EventBody) -> None:
        if self._log is not None:
            self._log.record(self.now_ns, body)
        self._recorder.record(self.core.apply(SchedulerEvent(self.now_ns, body)), self.now_ns)

    def _token(self, stream: Stream, position: int) -> int:
        job = self._recorder.by_stream[stream].job
        if job.stops and position >= job.output_tokens - 1:
            return job.submission.end_ids[0]
        if self._output is not None:
            return self._output(job, position)
        return made_up_ids(stream.request, len(job.submission.prompt_ids) + position, 1)[0]
