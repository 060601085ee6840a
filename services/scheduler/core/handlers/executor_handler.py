"""What the executor says: steps done and failed, and who it is.

Whoever was in a step that failed, or in flight when the executor died, is suspected (see `suspects`) and computed again in
a new epoch. A step without enough memory is nobody's fault: it is tried again with half the tokens, and only who does not
even fit alone with a single one is ended with an error.
"""

from typing import Final, assert_never

from noria.proto.execution import Failure, Geometry, Inventory, Sampled, StepDone, StepFailed
from noria.proto.output import TokenRun
from noria.services.scheduler.core.handlers.cache_adoption import CacheAdoption
from noria.services.scheduler.core.handlers.capacity_report import CapacityReport
from noria.services.scheduler.core.handlers.epochs import install, reopen
from noria.services.scheduler.core.handlers.stream_handler import StreamHandler
from noria.services.scheduler.core.interface.events import (
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    IllegalEventError,
    RequestPhase,
)
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice, InFlightStep
from noria.services.scheduler.core.state.request import Request, RequestState, natural_end
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.step_planner import StepPlanner

_RECOVER_AFTER_STEPS: Final = 32


class ExecutorHandler:
    """Applies the executor's messages to a board."""

    def __init__(
        self,
        board: SchedulerState,
        planner: StepPlanner,
        intake: StreamHandler,
        credit: CapacityReport,
        adoption: CacheAdoption,
    ) -> None:
        self._board = board
        self._adoption = adoption
        self._planner = planner
        self._intake = intake
        self._credit = credit
        self._steps_since_failure = 0
        # Who was in flight when the executor fell silent, and whether anybody else was.
        self._doubted: list[Request] = []

    def apply(self, now_ns: int, body: StepDone | StepFailed | Geometry | Inventory) -> None:
        """Take one message from the executor, or what is known of it."""
        match body:
            case StepDone():
                self.done(now_ns, body)
            case StepFailed():
                self.failed(now_ns, body)
            case Geometry():
                self.executor_joined(now_ns, body)
            case Inventory():
                self._adoption.told(body)
            case _:
                assert_never(body)

    def done(self, now_ns: int, body: StepDone) -> None:
        """A step's tokens; results of an older epoch are ignored."""
        if not self._of_this_epoch(body.epoch):
            return
        lane = self._board.lane
        if not lane.steps or lane.steps[0].number != body.number:
            raise IllegalEventError(f"step {body.number} is done, but not the oldest of {lane.numbers} in flight")
        _check_sampled(lane.steps[0], body.sampled)
        step = lane.finish(now_ns)
        counters = self._board.counters
        counters.steps += 1
        counters.tokens += step.tokens
        self._credit.done(step, body.compute_us)
        self._recover()
        self._collect(step, body.sampled, now_ns)
        self._board.returns.freed(self._board.memory, step, now_ns)

    def failed(self, now_ns: int, body: StepFailed) -> None:
        """A step was not computed, nor any later one: everything is planned again in a new epoch.

        An executor that refuses a plan says so while an earlier step computes, whose result is void then, too.
        """
        if not self._of_this_epoch(body.epoch):
            return
        lane = self._board.lane
        if body.number not in lane.numbers:
            raise IllegalEventError(f"step {body.number} failed, but only {lane.numbers} are in flight")
        step = next(each for each in reopen(self._board, now_ns) if each.number == body.number)
        self._measure_all(now_ns)
        self._board.counters.failed_steps += 1
        self._steps_since_failure = 0
        present = [entry.request for entry in step.entries]
        detail = f"the executor could not compute it: {body.detail}"
        match body.failure:
            case Failure.MEMORY:
                if step.tokens <= 1:
                    self._condemn([each for each in present if each.state is RequestState.WAITING], now_ns, detail)
                else:
                    self._planner.token_limit = max(1, step.tokens // 2)
            case Failure.INVALID | Failure.ERROR:
                self._blame(present, now_ns, detail)
            case _:
                assert_never(body.failure)

    def executor_joined(self, now_ns: int, geometry: Geometry) -> None:
        """An executor is ready: open an epoch on its empty cache."""
        capacity = (geometry.num_blocks - geometry.reserved_blocks) // max(1, len(geometry.groups))
        limits = [geometry.page_size, geometry.max_slots, geometry.max_batch_tokens, geometry.max_model_tokens]
        limits += [group.blocks_per_chunk for group in geometry.groups]
        if not geometry.groups or capacity < 1 or min(limits) < 1 or geometry.reserved_blocks < 0:
            raise IllegalEventError(f"an executor that can hold nothing: {geometry}")
        self._begin(now_ns, geometry)
        self._adoption.executor_joined(now_ns, geometry)

    def executor_lost(self, now_ns: int, body: ExecutorLost | ExecutorSilent | ExecutorReturned) -> None:
        """Nobody computes: whoever was active waits. Those in flight are suspected once it is known that it died."""
        lost = self._begin(now_ns, None)
        self._doubted = self._doubted or [entry.request for step in lost for entry in step.entries]
        self._adoption.executor_lost()
        match body:
            case ExecutorLost():
                self._blame(self._doubted, now_ns, "the executor died whenever it computed this request alone")
                self._doubted = []
            case ExecutorReturned():
                self._doubted = []
            case ExecutorSilent():
                pass
            case _:
                assert_never(body)

    def _begin(self, now_ns: int, geometry: Geometry | None) -> list[InFlightStep]:
        lost = reopen(self._board, now_ns)
        install(self._board, geometry)
        self._planner.token_limit = self._planner.tokens_max
        self._measure_all(now_ns)
        return lost

    def _blame(self, present: list[Request], now_ns: int, detail: str) -> None:
        """These were in what failed; those that have ended can't be suspected, but were there."""
        there = dict.fromkeys(present)
        accused = [each for each in there if each.state is RequestState.WAITING]
        condemned = self._board.suspect(accused, alone=len(there) == 1)
        self._condemn(condemned, now_ns, detail)

    def _measure_all(self, now_ns: int) -> None:
        for request in self._board.waiting:
            self._intake.measure(request, now_ns)

    def _of_this_epoch(self, epoch: int) -> bool:
        """False for an older epoch; raises IllegalEventError for one that was never opened."""
        if epoch > self._board.lane.epoch:
            raise IllegalEventError(f"epoch {epoch} was never opened, the present one is {self._board.lane.epoch}")
        return epoch == self._board.lane.epoch

    def _recover(self) -> None:
        planner = self._planner
        self._steps_since_failure += 1
        if planner.token_limit < planner.tokens_max and self._steps_since_failure >= _RECOVER_AFTER_STEPS:
            self._steps_since_failure = 0
            planner.token_limit = min(planner.tokens_max, planner.token_limit * 2)

    def _condemn(self, requests: list[Request], now_ns: int, detail: str) -> None:
        for request in requests:
            self._intake.fail(request, now_ns, detail)

    def _collect(self, step: InFlightStep, sampled: tuple[Sampled, ...], now_ns: int) -> None:
        """Take a step's tokens; everything here is paid for every running request in every step."""
        board, counters, news, memory = self._board, self._board.counters, self._board.news, self._board.memory
        finished, gone, waiting = RequestState.FINISHED, RequestState.GONE, RequestState.WAITING
        results, useful = iter(sampled), 0
        for request, output, tokens, end, holding in step.entries:
            request.in_flight -= 1
            request.spent += tokens
            state = request.state
            if end >= holding.due and memory is not None:
                counters.merged_pages += memory.publish(holding, request, end)
            got = next(results) if output >= 0 else None
            if state is finished or state is gone:
                counters.discarded_slices += 1
                counters.wasted_tokens += tokens
                request.wasted += tokens
                board.policy.discarded(request, output, end - tokens, end)
                if state is gone and not request.in_flight:
                    board.returns.spent(request)
                continue
            if got is None:
                continue
            request.output.append(got.ids[0])
            if got.likelihoods:
                request.likelihoods += got.likelihoods
            useful += 1
            if state is waiting:
                board.waiting.learned()
            if request.suspected and len(request.output) > request.suspected_at:
                board.clear(request)
            if not request.decoding_shown and state is not waiting:
                request.decoding_shown = True
                board.moved(request, RequestPhase.DECODING, now_ns)
            reason = natural_end(request)
            if reason is not None:
                board.finish(request, reason, now_ns)
            cached, queue_us = request.cached_tokens, request.queue_us
            news.append(
                TokenRun(
                    request.stream, request.attempt, output, got.ids, reason or 0, "", cached, queue_us, got.likelihoods
                )
            )
        counters.output_tokens += useful


def _check_sampled(step: InFlightStep, sampled: tuple[Sampled, ...]) -> None:
    """A result names the sampling slices of its step in their order, one id each."""
    expected: list[InFlightSlice] = [entry for entry in step.entries if entry.output >= 0]
    if len(expected) != len(sampled):
        raise IllegalEventError(f"step {step.number} samples {len(expected)} streams, its result {len(sampled)}")
    for (request, output, _, _, _), got in zip(expected, sampled, strict=True):
        if request.stream != got.stream or request.attempt != got.attempt or output != got.start or len(got.ids) != 1:
            raise IllegalEventError(f"step {step.number} samples {request.stream} at {output}, its result {got.stream}")
