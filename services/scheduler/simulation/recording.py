"""A recorded run, read back: as requests for a simulation, or applied to a core again event by event.

Token ids are made up from the hashes of pages, so that what was equal is equal again. Applied to the same core, the same plans
come out, at the same times: that is how a recorded run is measured, and explained, afterwards.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, assert_never

from noria.proto.base import Ended, Stream
from noria.proto.execution import Geometry, Held, Inventory, Sampled, StepDone, StepPlan, cache_digest
from noria.proto.sampling import Sampling
from noria.proto.scheduling import StepTime, Submission, Submit, Withdraw
from noria.services.scheduler.core.interface.events import (
    AdmissionJoined,
    EventBody,
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    PolicyChanged,
    SchedulerEvent,
    TimePassed,
)
from noria.services.scheduler.core.predict.step_time_model import StepTimeModel
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.observe import log_records
from noria.services.scheduler.observe.log_records import HASH_BYTES, AnyLogRecord, SubmissionRecord
from noria.services.scheduler.simulation.jobs import OutcomeRecorder, SimulatedOutcome, SimulatedRequest, made_up_ids
from noria.shared.errors import UserError

_NEVER: Final = 0
_FACTS: Final[dict[str, EventBody]] = {
    "AdmissionJoined": AdmissionJoined(),
    "ExecutorLost": ExecutorLost(),
    "ExecutorSilent": ExecutorSilent(),
    "ExecutorReturned": ExecutorReturned(),
    "TimePassed": TimePassed(),
}


class RecordedRun:
    """An event log. Raises UserError for a file that is none, or that holds no run."""

    def __init__(self, path: Path) -> None:
        try:
            self.records = list(log_records.read(path))
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the event log {path}: {error}") from error
        began = self.records[0] if self.records else None
        geometries = [each.geometry for each in self.records if isinstance(each, log_records.GeometryRecord)]
        if not isinstance(began, log_records.LogBegan) or not geometries:
            raise UserError(f"{path} holds no run: no executor ever joined")
        self.began: log_records.LogBegan = began
        self.geometry: Geometry = geometries[-1]
        self._pages: dict[Stream, bytes] = {}
        self.arrivals: dict[Stream, tuple[int, SubmissionRecord]] = {}
        self._outputs: dict[Stream, int] = {}
        self._stopped: dict[Stream, int] = {}
        self._withdrawn: dict[Stream, int] = {}
        for each in self.records:
            self._scan(each)

    @property
    def whole(self) -> bool:
        """Whether the log begins with the scheduler's start, so that its events can be applied to a core again."""
        return not self.began.continued

    def step_time(self) -> StepTime:
        """The step-time model of the recorded steps."""
        model = StepTimeModel()
        for each in self.records:
            if isinstance(each, log_records.StepDoneRecord):
                model.observe(each.tokens, each.cache_tokens, each.requests, each.compute_us, each.pairs)
        return model.coefficients()

    def jobs(self) -> list[SimulatedRequest]:
        """A request for every stream whose end is in the log, at the time of its arrival there."""
        found = []
        for stream, (at_ns, arrival) in self.arrivals.items():
            outputs = self._outputs.get(stream, -1)
            if outputs < 0:
                continue
            made = max(1, outputs)
            stops = self._stopped.get(stream) == made - 1
            submission = self.submission(arrival)
            found.append(SimulatedRequest(at_ns, submission, made, stops, self._withdrawn.get(stream)))
        return found

    def submission(self, arrival: SubmissionRecord) -> Submission:
        """The submission with made-up ids."""
        count = arrival.prompt_tokens + arrival.output_tokens
        ids = tuple(self.token(arrival.stream, position) for position in range(count))
        return Submission(
            stream=arrival.stream,
            attempt=arrival.attempt,
            prompt_ids=ids[: arrival.prompt_tokens],
            sampling=Sampling(seed=0, max_tokens=arrival.max_tokens, min_tokens=arrival.min_tokens),
            end_ids=self._end_ids(arrival),
            has_stop_strings=arrival.has_stop_strings,
            output_ids=ids[arrival.prompt_tokens :],
            tenant=arrival.tenant,
            traffic_class=arrival.traffic_class,
            ttl_first_ms=arrival.ttl_first_ms,
            ttl_ms=arrival.ttl_ms,
            seniority_ms=arrival.seniority_ms,
            service=arrival.service,
            doubt=arrival.doubt,
        )

    def token(self, stream: Stream, position: int) -> int:
        """The made-up id at a position of prompt and output: equal where the recorded pages were equal."""
        page, offset = divmod(position, self.began.page_tokens)
        key = self._pages.get(stream, b"")[page * HASH_BYTES : (page + 1) * HASH_BYTES]
        if key:
            return 1 + (int.from_bytes(key, "big") >> 2) + offset
        return made_up_ids(stream.request * 64 + stream.choice, position, 1)[0]

    def replay_events(self) -> Iterator[tuple[Scheduler, int, EventBody | None, list[StepPlan]]]:
        """Yields a new core with each time, event (None for planning) and the plans made; the caller applies the event."""
        core = Scheduler(self.began.settings)
        for each in self.records:
            if isinstance(each, log_records.LogBegan):
                continue
            plans: list[StepPlan] = []
            if isinstance(each, log_records.PlanningRecord):
                while (plan := core.plan(each.at_ns)) is not None:
                    plans.append(plan)
                yield core, each.at_ns, None, plans
            else:
                yield core, each.at_ns, self._body(each, core), plans

    def outcomes(self) -> tuple[Scheduler, list[SimulatedOutcome]]:
        """What became of every stream in the recorded run, and the core at its end."""
        recorder = OutcomeRecorder(
            [SimulatedRequest(at_ns, self.submission(each), 1) for at_ns, each in self.arrivals.values()]
        )
        core: Scheduler | None = None
        for core, now_ns, body, _ in self.replay_events():
            if body is not None:
                recorder.record(core.apply(SchedulerEvent(now_ns, body)), now_ns)
        assert core is not None
        return core, recorder.outcomes

    def _end_ids(self, arrival: SubmissionRecord) -> tuple[int, ...]:
        """The id at which the stream stopped, or one that never comes."""
        stopped = self._stopped.get(arrival.stream)
        if stopped is not None:
            return (self.token(arrival.stream, arrival.prompt_tokens + stopped),)
        return (_NEVER,) if arrival.can_stop else ()

    def _scan(self, record: AnyLogRecord) -> None:
        match record:
            case log_records.SubmitRecord():
                for arrival in record.arrivals:
                    self.arrivals.setdefault(arrival.stream, (record.at_ns, arrival))
                    if len(arrival.pages) > len(self._pages.get(arrival.stream, b"")):
                        self._pages[arrival.stream] = arrival.pages
            case log_records.StepDoneRecord() | log_records.InventoryRecord():
                self._stopped.update(record.stops)
                for stream, page in record.pages:
                    self._pages[stream] = self._pages.get(stream, b"") + page
            case log_records.EndedRecord():
                for stream, outputs in zip(record.streams, record.outputs, strict=True):
                    if outputs >= 0:
                        self._outputs[stream] = outputs
            case log_records.WithdrawRecord():
                for stream in record.streams:
                    self._withdrawn[stream] = record.at_ns
            case _:
                pass

    def _body(self, record: AnyLogRecord, core: Scheduler) -> EventBody:
        match record:
            case log_records.SubmitRecord():
                return Submit(tuple(map(self.submission, record.arrivals)), record.complete)
            case log_records.StepDoneRecord():
                return self._done(record, core)
            case log_records.WithdrawRecord():
                return Withdraw(record.streams, record.end)
            case log_records.EndedRecord():
                return Ended(record.streams)
            case log_records.DetokenizerProgressRecord() | log_records.ResendRecord() | log_records.StepFailedRecord():
                return record.body
            case log_records.InventoryRecord():
                return Inventory(record.epoch, tuple(map(self._held, record.entries)))
            case log_records.GeometryRecord():
                return record.geometry
            case log_records.PeerEventRecord():
                return _FACTS[record.name]
            case log_records.PolicyChangeRecord():
                return PolicyChanged(record.policy, record.rules)
            case log_records.LogBegan() | log_records.PlanningRecord():
                raise AssertionError("no event")
            case _:
                assert_never(record)

    def _held(self, kept: log_records.HeldRecord) -> Held:
        """An inventory's entry, with made-up ids."""
        prompt = self.arrivals[kept.stream][1].prompt_tokens
        ids = [self.token(kept.stream, position) for position in range(prompt + kept.output_tokens)]
        digest = cache_digest(ids[: kept.length])
        return Held(kept.slot, kept.stream, kept.attempt, digest, kept.length, kept.blocks, tuple(ids[prompt:]))

    def _done(self, record: log_records.StepDoneRecord, core: Scheduler) -> StepDone:
        sampled = []
        steps = core.state.in_flight.steps
        for entry in steps[0].entries if steps and record.epoch == core.state.in_flight.epoch else ():
            if entry.output >= 0:
                request = entry.request
                token = self.token(request.stream, request.asked.prompt_tokens + entry.output)
                sampled.append(Sampled(request.stream, request.attempt, entry.output, (token,)))
        return StepDone(record.epoch, record.number, tuple(sampled), record.compute_us)
