"""Everything the scheduler owns, and the moves that keep it consistent: admit, drain, preempt, finish, forget.

Decides nothing: the planner and the scheduler call the moves.
"""

from collections.abc import Collection
from typing import assert_never

from noria.proto.base import End, Stream
from noria.proto.execution import Geometry
from noria.services.scheduler.core.cache.block_allocators import UNLIMITED
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.interface.events import PhaseChanged, RequestPhase, SchedulerReply
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.policy.policy import Policy
from noria.services.scheduler.core.predict.slot_forecast import EndRates
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.counters import SchedulerCounters
from noria.services.scheduler.core.state.deadlines import Deadlines
from noria.services.scheduler.core.state.free_slots import FreeSlots
from noria.services.scheduler.core.state.in_flight_steps import InFlightSteps
from noria.services.scheduler.core.state.reclaims import ReclaimReports
from noria.services.scheduler.core.state.request import Request, RequestState
from noria.services.scheduler.core.state.step_decisions import DecisionLog
from noria.services.scheduler.core.state.suspects import Suspects
from noria.services.scheduler.core.state.waiting_queue import WaitingQueue


class SchedulerState:
    """Requests by state, with cache, slots and lane. `news` is what there is to tell since it was last collected.

    now_ns: the time of the event or plan at hand.
    """

    def __init__(self, settings: CoreSettings, policy: Policy) -> None:
        self.settings = settings
        self.policy = policy
        self.requests: dict[Stream, Request] = {}
        self.waiting = WaitingQueue(policy.order)
        self.prefilling: dict[Request, None] = {}
        self.decoding: dict[Request, None] = {}
        self.draining: dict[Request, None] = {}
        self.finished = 0
        self.lane = InFlightSteps()
        self.geometry: Geometry | None = None
        self.memory: CacheMemory | None = None
        self.slots = FreeSlots(0)
        # Requests whose cache was taken over: the plan that opens the epoch fills their slots.
        self.adopted: dict[Request, None] = {}
        self.counters = SchedulerCounters()
        self.deadlines = Deadlines()
        self.suspects = Suspects()
        self.decisions = DecisionLog()
        self.endings = EndRates()
        self.news: list[SchedulerReply] = []
        self.returns = ReclaimReports(self.lane, self.counters, self.tell)
        self.now_ns = 0

    @property
    def running(self) -> int:
        """How many requests hold or await results of a slot."""
        return len(self.prefilling) + len(self.decoding) + len(self.draining)

    @property
    def continuing(self) -> Collection[Request]:
        """Who continues token by token beside all others; suspects do in steps of their own."""
        if not len(self.suspects):
            return self.decoding
        return [request for request in self.decoding if not request.suspected]

    @property
    def cache(self) -> CacheAllocator | None:
        """The present executor's cache."""
        return self.memory.cache if self.memory is not None else None

    def prompt_tokens(self, beside: int) -> int:
        """The prompt tokens that a step may have beside so many decodes: as configured, else as the executor advises."""
        configured, geometry = self.settings.prefill_tokens, self.geometry
        if configured is not None:
            return configured
        assert geometry is not None
        if not beside:
            return geometry.prefill_tokens or UNLIMITED
        many = geometry.prefill_tokens_beside
        return max(many, min(geometry.prefill_tokens_few, many * geometry.prefill_decodes // beside)) or UNLIMITED

    def change(self, policy: Policy) -> None:
        """Put everybody under another policy, which may be the present one with other rules; nobody is lost."""
        for request in self.requests.values():
            if request.state is not RequestState.WAITING:
                policy.adopt(request)
        self.waiting.reorder(policy)
        self.policy = policy
        if self.memory is not None:
            self.memory.change_policy()
            self.memory.cache.keep(policy.kept(self.memory.cache.pages, self.memory.cache.page_tokens))
            for request in self.requests.values():
                # What was accepted before so much was kept goes on.
                if request.prompt_tokens + request.limit > self.memory.cache.largest_tokens:
                    request.exempt = True

    def tell(self, reply: SchedulerReply) -> None:
        """Have this told with the event at hand."""
        self.news.append(reply)

    def moved(self, request: Request, stage: RequestPhase, now_ns: int, decision: str = "") -> None:
        """Tell that a request entered a stage."""
        traceparent = request.submission.traceparent
        self.news.append(PhaseChanged(request.stream, stage, now_ns, traceparent, len(request.output), decision))

    def wait(self, request: Request, now_ns: int, decision: str = "") -> None:
        """Put a request into the waiting queue."""
        request.state = RequestState.WAITING
        request.decoding_shown = False
        self.waiting.add(request)
        if request.suspected:
            self.waiting.pass_over(request)
        self.moved(request, RequestPhase.QUEUED, now_ns, decision)

    def admit(self, request: Request, pages: int, now_ns: int) -> None:
        """Give a waiting request a slot, and the published pages found for it; its ids are sent with this plan."""
        assert self.memory is not None
        self.waiting.remove(request)
        request.state = RequestState.PREFILLING
        request.slot = self.slots.take()
        self._count_hits(request, pages * self.memory.cache.page_tokens)
        self.memory.enter(request, pages)
        request.held_ns, request.held_blocks = now_ns, request.held.blocks if request.held is not None else 0
        request.filled = request.known
        request.slot_planned = request.planned
        if request.started_ns is None:
            request.started_ns = now_ns
        self.prefilling[request] = None
        self.moved(request, RequestPhase.PREFILLING, now_ns)

    def suspect(self, requests: list[Request], *, alone: bool) -> list[Request]:
        """Let these waiting requests run apart from now on; returns those that are condemned instead.

        alone: nobody else was in what failed.
        """
        fresh = [request for request in requests if not request.suspected]
        condemned = self.suspects.blame(requests, alone=alone)
        for request in fresh:
            self.waiting.pass_over(request)
        return condemned

    def clear(self, request: Request) -> None:
        """It has made a token: it is one of all again."""
        self.suspects.clear(request)
        self.waiting.wake(request)

    def decode(self, request: Request) -> None:
        """All known ids are planned: from now on it continues token by token."""
        del self.prefilling[request]
        self.decoding[request] = None
        request.state = RequestState.DECODING

    def drain(self, request: Request) -> None:
        """All it may generate is planned: its slot is free for the next plan, its blocks after its last step."""
        self.leave(request)
        self.vacate(request)
        self.endings.ended(request.planned - request.slot_planned, early=False)
        request.state = RequestState.DRAINING
        self.draining[request] = None

    def preempt(self, request: Request, now_ns: int) -> None:
        """Take slot and cache; its tokens stay, also those still to come from steps in flight.

        Its cache goes to the host if it fits there, else it is given up and computed again.
        """
        assert self.memory is not None and request.held is not None
        counters = self.counters
        swapped = self.memory.store(request, -1 if request in self.adopted else request.slot)
        if swapped:
            counters.swaps_out += 1
            counters.swapped_blocks += request.held.blocks
        else:
            counters.resets += 1
            counters.reset_tokens += request.length
            request.computed = max(request.computed, request.length)
        request.preempted_at = request.planned
        self.leave(request)
        self.vacate(request)
        request.length = 0
        self.wait(request, now_ns, "swap" if swapped else "reset")

    def finish(self, request: Request, end: End, now_ns: int, detail: str = "") -> None:
        """Propose its end; it holds nothing any more except its ids."""
        self._withdraw_from_state(request)
        self.suspects.drop(request)
        request.state = RequestState.FINISHED
        request.end = end
        request.detail = detail
        self.policy.ended(request)
        self.finished += 1
        self.moved(request, RequestPhase.ENDED, now_ns, end.label)

    def forget(self, request: Request, now_ns: int, decision: str, *, reclaim: bool) -> None:
        """Drop it, wherever it is. reclaim: tell when its last block is back."""
        if request.state is RequestState.FINISHED:
            self.finished -= 1
        else:
            self.moved(request, RequestPhase.ENDED, now_ns, decision)
        self._withdraw_from_state(request)
        self.suspects.drop(request)
        request.state = RequestState.GONE
        self.policy.ended(request)
        del self.requests[request.stream]
        self.deadlines.tidy(len(self.requests))
        if not request.in_flight:
            self.returns.spent(request)
        if not reclaim:
            return
        if request.in_flight:
            request.withdrawn_ns = now_ns
            request.withdrawn_step = self.lane.done
        else:
            self.returns.reclaimed(request, 0, 0, 0)

    def leave(self, request: Request) -> None:
        """Take an active request out of the lists."""
        match request.state:
            case RequestState.PREFILLING:
                del self.prefilling[request]
            case RequestState.DECODING:
                del self.decoding[request]
            case RequestState.DRAINING:
                del self.draining[request]
            case RequestState.WAITING | RequestState.FINISHED | RequestState.GONE:
                raise AssertionError(f"{request.stream} is not active")
            case _:
                assert_never(request.state)

    def vacate(self, request: Request) -> None:
        """Take slot and cache from a request that runs; blocks that steps in flight touch are freed after them."""
        assert self.memory is not None and request.held is not None
        # A holding grows about evenly while it lasts, so that its mean is that of its beginning and its end.
        held_us = (self.now_ns - request.held_ns) // 1000
        request.block_us += (request.held_blocks + request.held.blocks) * held_us // 2
        if request in self.adopted:
            del self.adopted[request]
            self.slots.put_back(request.slot)
        else:
            self.slots.give_back(request.slot)
        request.slot = -1
        self.memory.leave(request)

    def _count_hits(self, request: Request, found: int) -> None:
        counters = self.counters
        if request.stored is not None:
            counters.swaps_in += 1
            return
        if request.started_ns is not None:
            counters.recovered_tokens += found
            return
        request.cached_tokens = min(found, request.prompt_tokens)
        counters.prompt_tokens += request.prompt_tokens
        counters.hit_tokens += request.cached_tokens

    def _withdraw_from_state(self, request: Request) -> None:
        match request.state:
            case RequestState.WAITING:
                self.waiting.remove(request)
                if self.memory is not None:
                    self.memory.drop(request)
            case RequestState.PREFILLING | RequestState.DECODING:
                self.leave(request)
                self.vacate(request)
                self.endings.ended(request.planned - request.slot_planned, early=True)
            case RequestState.DRAINING:
                self.leave(request)
            case RequestState.FINISHED | RequestState.GONE:
                pass
            case _:
                assert_never(request.state)
