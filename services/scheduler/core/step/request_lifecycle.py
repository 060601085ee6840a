"""Moves requests from one state to another, and keeps lists, slots, cache and steps in flight consistent. Decides nothing.

The states and their order are drawn in `state.request`.
"""

from typing import assert_never

from noria.proto.base import End
from noria.services.scheduler.core.interface.events import RequestPhase, StreamPhaseChanged
from noria.services.scheduler.core.state.cache_memory import mark_oversized
from noria.services.scheduler.core.state.request import Request, RequestStatus
from noria.services.scheduler.core.state.request_policy import RequestPolicy
from noria.services.scheduler.core.state.scheduler_state import SchedulerState


class RequestLifecycle:
    """All moves of requests of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def announce(self, request: Request, phase: RequestPhase, now_ns: int, decision: str = "") -> None:
        """Reply that a request entered a phase."""
        traceparent, outputs = request.asked.submission.traceparent, len(request.progress.output)
        self._state.replies.append(StreamPhaseChanged(request.stream, phase, now_ns, traceparent, outputs, decision))

    def wait(self, request: Request, now_ns: int, decision: str = "") -> None:
        """Put a request into the waiting queue."""
        request.state = RequestStatus.WAITING
        self._state.waiting.add(request)
        if request.suspicion.suspected:
            self._state.waiting.pass_over(request)
        self.announce(request, RequestPhase.QUEUED, now_ns, decision)

    def admit(self, request: Request, pages: int, now_ns: int) -> None:
        """Give a waiting request a slot, and so many published pages found for it; its ids are sent with this plan."""
        state, work = self._state, request.work
        assert state.memory is not None
        swapped, first = request.cache.host is not None, request.life.started_ns is None
        state.waiting.remove(request)
        work.length = state.memory.enter(request, pages, now_ns)
        self._count_hits(request, pages * state.memory.cache.page_tokens, swapped=swapped, first=first)
        self._occupy(request)
        if first:
            self._start(request, now_ns)
        self.announce(request, RequestPhase.PREFILLING, now_ns)

    def adopt(self, request: Request, length: int, now_ns: int) -> None:
        """Give a waiting request a slot whose cache holds `length` positions of it; the plan that opens the epoch names its ids."""
        state = self._state
        state.waiting.remove(request)
        request.work.length = length
        self._occupy(request)
        if request.life.started_ns is None:
            self._start(request, request.asked.received_ns)
        state.adopted[request] = None
        state.policy.taken_over(request)
        state.counters.adopted += 1
        state.counters.adopted_tokens += length
        self.announce(request, RequestPhase.PREFILLING, now_ns, "adopted")

    def replan(self, request: Request) -> None:
        """A waiting request goes on from what is known of it: no result of a step in flight will come."""
        request.work.outputs = len(request.progress.output)
        request.work.slices = request.progress.results

    def suspect(self, requests: list[Request], *, alone: bool) -> list[Request]:
        """Let these waiting requests run apart from now on; returns those that are condemned instead.

        alone: nobody else was in what failed.
        """
        fresh = [request for request in requests if not request.suspicion.suspected]
        condemned = self._state.suspects.blame(requests, alone=alone)
        for request in fresh:
            self._state.waiting.pass_over(request)
        return condemned

    def clear(self, request: Request) -> None:
        """End the suspicion of a request that has made a token: it runs beside all others again."""
        self._state.suspects.clear(request)
        self._state.waiting.wake(request)

    def decode(self, request: Request) -> None:
        """Let a request continue token by token: all its known ids are planned."""
        del self._state.prefilling[request]
        self._state.decoding[request] = None
        request.state = RequestStatus.DECODING

    def drain(self, request: Request, now_ns: int) -> None:
        """Free a request's slot for the next plan, its blocks after its last step: all it may generate is planned."""
        self._leave(request)
        self._vacate(request, now_ns)
        self._state.end_rates.ended(request.work.outputs - request.work.outputs_at_slot, early=False)
        request.state = RequestStatus.DRAINING
        self._state.draining[request] = None

    def preempt(self, request: Request, now_ns: int) -> None:
        """Take a request's slot and cache; its tokens stay, also those still to come from steps in flight.

        Its cache goes to the host if it fits there, else it is given up and computed again.
        """
        state, work, counters = self._state, request.work, self._state.counters
        assert state.memory is not None and request.cache.blocks is not None
        swapped = state.memory.store(request, -1 if request in state.adopted else request.slot)
        if swapped:
            counters.swaps_out += 1
            counters.swapped_blocks += request.cache.blocks.block_count
        else:
            counters.resets += 1
            counters.reset_tokens += work.length
            work.computed = max(work.computed, work.length)
        work.preempted_at = work.outputs
        self._leave(request)
        self._vacate(request, now_ns)
        work.length = 0
        self.wait(request, now_ns, "swap" if swapped else "reset")

    def reset(self, request: Request, now_ns: int) -> None:
        """Let an active request wait to be computed again: the executor has forgotten its slot."""
        work = request.work
        work.computed = max(work.computed, work.length)
        if request.state is not RequestStatus.DRAINING:
            self._vacate(request, now_ns)
        self._leave(request)
        work.length = 0
        self.wait(request, now_ns, "epoch")

    def lose_stored(self, request: Request) -> None:
        """Forget what the host had of a waiting request: it is computed again."""
        assert self._state.memory is not None
        request.work.computed = max(request.work.computed, self._state.memory.lose_stored(request))

    def finish(self, request: Request, end: End, now_ns: int, detail: str = "") -> None:
        """Propose a request's end; it holds nothing any more except its ids."""
        self._withdraw(request, now_ns)
        self._state.suspects.drop(request)
        request.state = RequestStatus.FINISHED
        request.life.end = end
        request.life.detail = detail
        self._state.policy.ended(request)
        self._state.finished += 1
        self.announce(request, RequestPhase.ENDED, now_ns, end.label)

    def forget(self, request: Request, now_ns: int, decision: str, *, reclaim: bool) -> None:
        """Drop a request, whatever its state. reclaim: report when its last block is back."""
        state = self._state
        if request.state is RequestStatus.FINISHED:
            state.finished -= 1
        else:
            self.announce(request, RequestPhase.ENDED, now_ns, decision)
        self._withdraw(request, now_ns)
        state.suspects.drop(request)
        request.state = RequestStatus.GONE
        state.policy.ended(request)
        del state.requests[request.stream]
        state.deadlines.tidy(len(state.requests))
        if not request.in_flight:
            state.reclaims.spent(request)
        if not reclaim:
            return
        if request.in_flight:
            request.life.withdrawn_ns = now_ns
            request.life.withdrawn_step = state.in_flight.done
        else:
            state.reclaims.reclaimed(request, 0, 0, 0)

    def change_policy(self, policy: RequestPolicy) -> None:
        """Put everybody under another policy, which may be the present one with other rules; nobody is lost."""
        state, memory = self._state, self._state.memory
        for request in state.requests.values():
            if request.state is not RequestStatus.WAITING:
                policy.adopt(request)
        state.waiting.reorder(policy)
        state.policy = policy
        if memory is not None:
            memory.change_policy()
            memory.cache.keep(policy.kept(memory.cache.pages, memory.cache.page_tokens))
        for request in state.requests.values():
            # What was accepted before so much was kept goes on.
            longest = request.asked.prompt_tokens + request.progress.limit
            mark_oversized(request, oversized=memory is not None and longest > memory.cache.largest_tokens)

    def _start(self, request: Request, started_ns: int) -> None:
        """Note when a request's first step was planned."""
        request.life.started_ns = started_ns
        request.life.queue_us = (started_ns - request.asked.received_ns) // 1000

    def _occupy(self, request: Request) -> None:
        """Take a slot for a request whose known ids are to be planned."""
        request.state = RequestStatus.PREFILLING
        request.slot = self._state.slots.take()
        request.life.admissions += 1
        request.work.filled = request.known
        request.work.outputs_at_slot = request.work.outputs
        self._state.prefilling[request] = None

    def _leave(self, request: Request) -> None:
        """Take an active request out of the lists."""
        match request.state:
            case RequestStatus.PREFILLING:
                del self._state.prefilling[request]
            case RequestStatus.DECODING:
                del self._state.decoding[request]
            case RequestStatus.DRAINING:
                del self._state.draining[request]
            case RequestStatus.WAITING | RequestStatus.FINISHED | RequestStatus.GONE:
                raise AssertionError(f"{request.stream} is not active")
            case _:
                assert_never(request.state)

    def _vacate(self, request: Request, now_ns: int) -> None:
        """Take slot and cache from a request that runs; blocks that steps in flight touch are freed after them."""
        state = self._state
        assert state.memory is not None
        if request in state.adopted:
            del state.adopted[request]
            state.slots.put_back(request.slot)
        else:
            state.slots.give_back(request.slot)
        request.slot = -1
        state.memory.leave(request, now_ns)

    def _count_hits(self, request: Request, found: int, *, swapped: bool, first: bool) -> None:
        counters = self._state.counters
        if swapped:
            counters.swaps_in += 1
        elif not first:
            counters.recovered_tokens += found
        else:
            counters.prompt_tokens += request.asked.prompt_tokens
            counters.hit_tokens += request.cache.cached_tokens

    def _withdraw(self, request: Request, now_ns: int) -> None:
        """Take a request out of whatever state it is in."""
        state = self._state
        match request.state:
            case RequestStatus.WAITING:
                state.waiting.remove(request)
                if state.memory is not None:
                    state.memory.drop(request)
            case RequestStatus.PREFILLING | RequestStatus.DECODING:
                self._leave(request)
                self._vacate(request, now_ns)
                state.end_rates.ended(request.work.outputs - request.work.outputs_at_slot, early=True)
            case RequestStatus.DRAINING:
                self._leave(request)
            case RequestStatus.FINISHED | RequestStatus.GONE:
                pass
            case _:
                assert_never(request.state)
