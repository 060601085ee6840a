"""Handles what the executor says: results of steps, failures, and its arrival or loss.

Whoever was in a step that failed, or in flight when the executor died, is suspected (see `suspects`) and computed again in a
new epoch. A step without enough memory is nobody's fault: it is tried again with half the tokens, and only a request that does
not fit alone, with a single token, is ended with an error.
"""

from typing import Final, assert_never

from noria.proto.execution import Failure, Geometry, Inventory, Sampled, StepDone, StepFailed
from noria.proto.output import TokenRun
from noria.services.scheduler.core.handlers.cache_adoption import CacheAdoption
from noria.services.scheduler.core.handlers.capacity_report import CapacityReport
from noria.services.scheduler.core.handlers.stream_handler import StreamHandler
from noria.services.scheduler.core.interface.events import (
    ExecutorLost,
    ExecutorReturned,
    ExecutorSilent,
    IllegalEventError,
    RequestPhase,
)
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice, InFlightStep
from noria.services.scheduler.core.state.request import Request, RequestStatus
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.epochs import install, reopen
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle
from noria.services.scheduler.core.step.step_planner import StepPlanner

_RECOVER_AFTER_STEPS: Final = 32


class ExecutorHandler:
    """Applies the executor's messages, and facts about it, to the scheduler's state."""

    def __init__(
        self,
        state: SchedulerState,
        planner: StepPlanner,
        streams: StreamHandler,
        capacity: CapacityReport,
        adoption: CacheAdoption,
    ) -> None:
        self._state = state
        self._lifecycle = RequestLifecycle(state)
        self._adoption = adoption
        self._planner = planner
        self._streams = streams
        self._capacity = capacity
        self._steps_since_failure = 0
        # Who was in flight when the executor fell silent, and whether anybody else was.
        self._doubted: list[Request] = []

    def apply(self, now_ns: int, body: StepDone | StepFailed | Geometry | Inventory) -> None:
        """Handle one message from the executor. Raises IllegalEventError, changing nothing, for one that cannot be true."""
        match body:
            case StepDone():
                self.done(now_ns, body)
            case StepFailed():
                self.failed(now_ns, body)
            case Geometry():
                self.executor_joined(now_ns, body)
            case Inventory():
                self._adoption.inventory_received(body)
            case _:
                assert_never(body)

    def done(self, now_ns: int, body: StepDone) -> None:
        """Take the tokens of a step; results of an older epoch are ignored."""
        if not self._of_this_epoch(body.epoch):
            return
        in_flight = self._state.in_flight
        if not in_flight.steps or in_flight.steps[0].number != body.number:
            raise IllegalEventError(f"step {body.number} is done, but not the oldest of {in_flight.numbers} in flight")
        _check_sampled(in_flight.steps[0], body.sampled)
        step = in_flight.finish(now_ns)
        counters = self._state.counters
        counters.steps += 1
        counters.tokens += step.tokens
        self._capacity.done(step, body.compute_us)
        self._recover()
        self._collect(step, body.sampled, now_ns)
        memory = self._state.memory
        if memory is not None and (step.retired or step.spare):
            self._state.reclaims.freed(memory.free(step), now_ns)

    def failed(self, now_ns: int, body: StepFailed) -> None:
        """Plan everything again in a new epoch: a step was not computed, nor any later one.

        An executor that refuses a plan says so while an earlier step computes, whose result is void then, too.
        """
        if not self._of_this_epoch(body.epoch):
            return
        in_flight = self._state.in_flight
        if body.number not in in_flight.numbers:
            raise IllegalEventError(f"step {body.number} failed, but only {in_flight.numbers} are in flight")
        step = next(each for each in reopen(self._state, self._lifecycle, now_ns) if each.number == body.number)
        self._measure_all(now_ns)
        self._state.counters.failed_steps += 1
        self._steps_since_failure = 0
        present = [entry.request for entry in step.entries]
        detail = f"the executor could not compute it: {body.detail}"
        match body.failure:
            case Failure.MEMORY:
                if step.tokens <= 1:
                    self._condemn([each for each in present if each.state is RequestStatus.WAITING], now_ns, detail)
                else:
                    self._planner.token_limit = max(1, step.tokens // 2)
            case Failure.INVALID | Failure.ERROR:
                self._blame(present, now_ns, detail)
            case _:
                assert_never(body.failure)

    def executor_joined(self, now_ns: int, geometry: Geometry) -> None:
        """Open an epoch on the empty cache of an executor that is ready."""
        capacity = (geometry.num_blocks - geometry.reserved_blocks) // max(1, len(geometry.groups))
        limits = [geometry.page_size, geometry.max_slots, geometry.max_batch_tokens, geometry.max_model_tokens]
        limits += [group.blocks_per_chunk for group in geometry.groups]
        if not geometry.groups or capacity < 1 or min(limits) < 1 or geometry.reserved_blocks < 0:
            raise IllegalEventError(f"an executor that can hold nothing: {geometry}")
        self._begin(now_ns, geometry)
        self._adoption.executor_joined(now_ns, geometry)

    def executor_lost(self, now_ns: int, body: ExecutorLost | ExecutorSilent | ExecutorReturned) -> None:
        """Let whoever was active wait: nobody computes. Those in flight are suspected once it is known that the executor died."""
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
        lost = reopen(self._state, self._lifecycle, now_ns)
        install(self._state, geometry)
        self._planner.token_limit = self._planner.tokens_max
        self._measure_all(now_ns)
        return lost

    def _blame(self, present: list[Request], now_ns: int, detail: str) -> None:
        """Suspect those who were in what failed; those that have ended were there but can't be suspected."""
        there = dict.fromkeys(present)
        accused = [each for each in there if each.state is RequestStatus.WAITING]
        condemned = self._lifecycle.suspect(accused, alone=len(there) == 1)
        self._condemn(condemned, now_ns, detail)

    def _measure_all(self, now_ns: int) -> None:
        for request in self._state.waiting:
            self._streams.measure(request, now_ns)

    def _of_this_epoch(self, epoch: int) -> bool:
        """Whether a message is of the present epoch, not an older one. Raises IllegalEventError for one that was never opened."""
        if epoch > self._state.in_flight.epoch:
            raise IllegalEventError(f"epoch {epoch} was never opened, the present one is {self._state.in_flight.epoch}")
        return epoch == self._state.in_flight.epoch

    def _recover(self) -> None:
        planner = self._planner
        self._steps_since_failure += 1
        if planner.token_limit < planner.tokens_max and self._steps_since_failure >= _RECOVER_AFTER_STEPS:
            self._steps_since_failure = 0
            planner.token_limit = min(planner.tokens_max, planner.token_limit * 2)

    def _condemn(self, requests: list[Request], now_ns: int, detail: str) -> None:
        for request in requests:
            self._streams.fail(request, now_ns, detail)

    def _collect(self, step: InFlightStep, sampled: tuple[Sampled, ...], now_ns: int) -> None:
        """Take a step's tokens; everything here is paid for every running request in every step."""
        core, lifecycle, counters, memory = self._state, self._lifecycle, self._state.counters, self._state.memory
        finished, gone, waiting, replies = (
            RequestStatus.FINISHED,
            RequestStatus.GONE,
            RequestStatus.WAITING,
            core.replies,
        )
        results, useful, suspects = iter(sampled), 0, len(core.suspects)
        for request, output, tokens, end, blocks in step.entries:
            progress, state = request.progress, request.state
            progress.results += 1
            progress.computed_tokens += tokens
            if end >= blocks.due and memory is not None:
                counters.merged_pages += memory.publish(blocks, request, end)
            got = next(results) if output >= 0 else None
            if state is finished or state is gone:
                counters.discarded_slices += 1
                counters.wasted_tokens += tokens
                progress.wasted_tokens += tokens
                core.policy.discarded(request, output, end - tokens, end)
                if state is gone and not request.in_flight:
                    core.reclaims.spent(request)
                continue
            if got is None:
                continue
            ids, logprobs, life = got.ids, got.likelihoods, request.life
            progress.output.append(ids[0])
            if logprobs:
                progress.logprobs += logprobs
            useful += 1
            if state is waiting:
                core.waiting.learned()
            elif progress.announced_admission != life.admissions:
                progress.announced_admission = life.admissions
                lifecycle.announce(request, RequestPhase.DECODING, now_ns)
            if suspects and request.suspicion.suspected and len(progress.output) > request.suspicion.suspected_at:
                lifecycle.clear(request)
            reason = request.natural_end
            if reason is not None:
                lifecycle.finish(request, reason, now_ns)
            replies.append(
                TokenRun(
                    request.stream,
                    request.attempt,
                    output,
                    ids,
                    reason or 0,
                    "",
                    request.cache.cached_tokens,
                    life.queue_us,
                    logprobs,
                )
            )
        counters.output_tokens += useful


def _check_sampled(step: InFlightStep, sampled: tuple[Sampled, ...]) -> None:
    """Raises IllegalEventError unless a result names the sampling slices of its step in their order, one id each."""
    expected: list[InFlightSlice] = [entry for entry in step.entries if entry.output >= 0]
    if len(expected) != len(sampled):
        raise IllegalEventError(f"step {step.number} samples {len(expected)} streams, its result {len(sampled)}")
    for (request, output, _, _, _), got in zip(expected, sampled, strict=True):
        if request.stream != got.stream or request.attempt != got.attempt or output != got.start or len(got.ids) != 1:
            raise IllegalEventError(f"step {step.number} samples {request.stream} at {output}, its result {got.stream}")
