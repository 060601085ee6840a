"""Everything the scheduler owns, and the moves that keep it consistent: admit, drain, preempt, finish, forget.

Decides nothing: the planner and the scheduler call the moves.
"""

from collections.abc import Sequence
from typing import assert_never

from noria.proto.base import End, Stream
from noria.proto.execution import Geometry
from noria.proto.scheduling import Reclaimed, Spent
from noria.services.scheduler.core.allocators import UNLIMITED
from noria.services.scheduler.core.cache import Cache
from noria.services.scheduler.core.counters import Counters
from noria.services.scheduler.core.deadlines import Deadlines
from noria.services.scheduler.core.decisions import Decisions
from noria.services.scheduler.core.events import Moved, Reply, Stage
from noria.services.scheduler.core.lane import Lane, Step
from noria.services.scheduler.core.memory import Memory
from noria.services.scheduler.core.policy import Policy
from noria.services.scheduler.core.request import Request, State
from noria.services.scheduler.core.settings import Settings
from noria.services.scheduler.core.slots import Slots
from noria.services.scheduler.core.suspects import Suspects
from noria.services.scheduler.core.waiting import WaitingQueue


class Board:
    """Requests by state, with cache, slots and lane. `news` is what there is to tell since it was last collected.

    now_ns: the time of the event or plan at hand.
    """

    def __init__(self, settings: Settings, policy: Policy) -> None:
        self.settings = settings
        self.policy = policy
        self.requests: dict[Stream, Request] = {}
        self.waiting = WaitingQueue(policy.order)
        self.prefilling: dict[Request, None] = {}
        self.decoding: dict[Request, None] = {}
        self.draining: dict[Request, None] = {}
        self.finished = 0
        self.lane = Lane()
        self.geometry: Geometry | None = None
        self.memory: Memory | None = None
        self.slots = Slots(0)
        # Requests whose cache was taken over: the plan that opens the epoch fills their slots.
        self.adopted: dict[Request, None] = {}
        self.counters = Counters()
        self.deadlines = Deadlines()
        self.suspects = Suspects()
        self.decisions = Decisions()
        self.news: list[Reply] = []
        self.now_ns = 0

    @property
    def running(self) -> int:
        """How many requests hold or await results of a slot."""
        return len(self.prefilling) + len(self.decoding) + len(self.draining)

    @property
    def cache(self) -> Cache | None:
        """The present executor's cache."""
        return self.memory.cache if self.memory is not None else None

    def prompt_tokens(self, *, beside: bool) -> int:
        """The prompt tokens that a step may have, beside decodes or alone: as configured, else as the executor advises."""
        configured, geometry = self.settings.prefill_tokens, self.geometry
        if configured is not None:
            return configured
        assert geometry is not None
        return (geometry.prefill_tokens_beside if beside else geometry.prefill_tokens) or UNLIMITED

    def install(self, geometry: Geometry | None) -> None:
        """Take a new executor's cache and slots, or none; nothing may be running."""
        assert not self.running
        self.geometry = geometry
        self.memory = None
        for request in self.requests.values():
            request.prefix = None
        if geometry is not None:
            self.memory = Memory(geometry, self.lane, self.waiting, sharing=self.settings.allow_block_sharing)
            self.memory.cache.keep(self.policy.kept(self.memory.cache.pages, self.memory.cache.page_tokens))
        count = min(self.settings.max_requests_per_batch, geometry.max_slots) if geometry else 0
        self.slots = Slots(count)

    def change(self, policy: Policy) -> None:
        """Put everybody under another policy, which may be the present one with other rules; nobody is lost."""
        for request in self.requests.values():
            if request.state is not State.WAITING:
                policy.adopt(request)
        self.waiting.reorder(policy)
        self.policy = policy
        if self.memory is not None:
            self.memory.cache.keep(policy.kept(self.memory.cache.pages, self.memory.cache.page_tokens))
            for request in self.requests.values():
                # What was accepted before so much was kept goes on.
                if request.prompt_tokens + request.limit > self.memory.cache.largest_tokens:
                    request.exempt = True

    def moved(self, request: Request, stage: Stage, now_ns: int, decision: str = "") -> None:
        """Tell that a request entered a stage."""
        traceparent = request.submission.traceparent
        self.news.append(Moved(request.stream, stage, now_ns, traceparent, len(request.output), decision))

    def wait(self, request: Request, now_ns: int, decision: str = "") -> None:
        """Put a request into the waiting queue."""
        request.state = State.WAITING
        request.decoding_shown = False
        self.waiting.add(request)
        if request.suspected:
            self.waiting.pass_over(request)
        self.moved(request, Stage.QUEUED, now_ns, decision)

    def admit(self, request: Request, pages: int, now_ns: int) -> None:
        """Give a waiting request a slot, and the published pages found for it; its ids are sent with this plan."""
        assert self.memory is not None
        self.waiting.remove(request)
        request.state = State.PREFILLING
        request.slot = self.slots.take()
        self._count_hits(request, pages * self.memory.cache.page_tokens)
        self.memory.enter(request, pages)
        request.held_ns, request.held_blocks = now_ns, request.held.blocks if request.held is not None else 0
        request.filled = request.known
        request.slot_planned = request.planned
        if request.started_ns is None:
            request.started_ns = now_ns
        self.prefilling[request] = None
        self.moved(request, Stage.PREFILLING, now_ns)

    def adopt(self, request: Request, blocks: Sequence[Sequence[int]], length: int, now_ns: int) -> bool:
        """Give a waiting request a slot, and blocks in which `length` positions of it are computed already.

        The plan that opens the epoch tells its ids. False, changing nothing, when there is no slot or a block is taken.
        """
        if self.memory is None or not self.slots.free or not self.memory.adopt(request, blocks, length):
            return False
        self.waiting.remove(request)
        request.state = State.PREFILLING
        request.slot = self.slots.take()
        request.held_ns, request.held_blocks = now_ns, request.held.blocks if request.held is not None else 0
        request.filled = request.known
        request.slot_planned = request.planned
        if request.started_ns is None:
            request.started_ns = request.received_ns
        self.prefilling[request] = None
        self.adopted[request] = None
        self.policy.adopted(request)
        self.counters.adopted += 1
        self.counters.adopted_tokens += length
        self.moved(request, Stage.PREFILLING, now_ns, "adopted")
        return True

    def adopt_stored(self, request: Request, blocks: Sequence[Sequence[int]], length: int) -> bool:
        """Let a waiting request come back from the host, where these blocks hold `length` positions of it.

        False, changing nothing, when a block is another's.
        """
        stored = self.memory.host.claim(blocks, length) if self.memory is not None else None
        if stored is None:
            return False
        # Its place in the order changes with it.
        self.waiting.pass_over(request)
        request.stored = stored
        self.waiting.wake(request)
        self.counters.adopted += 1
        self.counters.adopted_tokens += length
        return True

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
        request.state = State.DECODING

    def drain(self, request: Request) -> None:
        """All it may generate is planned: its slot is free for the next plan, its blocks after its last step."""
        self._leave(request)
        self._vacate(request)
        request.state = State.DRAINING
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
        self._leave(request)
        self._vacate(request)
        request.length = 0
        self.wait(request, now_ns, "swap" if swapped else "reset")

    def finish(self, request: Request, end: End, now_ns: int, detail: str = "") -> None:
        """Propose its end; it holds nothing any more except its ids."""
        self._withdraw_from_state(request)
        self.suspects.drop(request)
        request.state = State.FINISHED
        request.end = end
        request.detail = detail
        self.policy.ended(request)
        self.finished += 1
        self.moved(request, Stage.ENDED, now_ns, end.label)

    def forget(self, request: Request, now_ns: int, decision: str, *, reclaim: bool) -> None:
        """Drop it, wherever it is. reclaim: tell when its last block is back."""
        if request.state is State.FINISHED:
            self.finished -= 1
        else:
            self.moved(request, Stage.ENDED, now_ns, decision)
        self._withdraw_from_state(request)
        self.suspects.drop(request)
        request.state = State.GONE
        self.policy.ended(request)
        del self.requests[request.stream]
        self.deadlines.tidy(len(self.requests))
        if not request.in_flight:
            self.spent(request)
        if not reclaim:
            return
        if request.in_flight:
            request.withdrawn_ns = now_ns
            request.withdrawn_step = self.lane.done
        else:
            self._reclaimed(request, 0, 0, 0)

    def spent(self, request: Request) -> None:
        """No step touches a forgotten request any more: tell what it cost."""
        self.news.append(Spent(request.stream, request.spent, request.wasted, request.block_us))

    def free(self, step: Step, now_ns: int) -> None:
        """The last step that touched what others had given back is over."""
        if self.memory is None or not (step.retired or step.spare):
            return
        for request, holding in self.memory.free(step):
            if request.withdrawn_ns is not None:
                steps = self.lane.done - request.withdrawn_step
                delay_us = (now_ns - request.withdrawn_ns) // 1000
                self._reclaimed(request, holding.blocks, steps, delay_us)

    def reopen(self, now_ns: int) -> list[Step]:
        """Begin a new epoch: nothing is in any slot, whoever was active or swapped out waits to be computed again.

        Published pages stay, for their content was complete before. Returns the lost steps.
        """
        lost = self.lane.reopen()
        for step in lost:
            for entry in step.entries:
                if entry.request.in_flight and entry.request.state is State.GONE:
                    self.spent(entry.request)
                entry.request.in_flight = 0
            self.free(step, now_ns)
        for request in (*self.prefilling, *self.decoding, *self.draining):
            request.computed = max(request.computed, request.length)
            if request.state is not State.DRAINING:
                self._vacate(request)
            self._leave(request)
            request.length = 0
            self.wait(request, now_ns, "epoch")
        for request in self.waiting:
            request.planned = len(request.output)
            request.in_flight = 0
            if request.stored is not None:
                request.computed = max(request.computed, request.stored.length)
                request.stored = None
            self.waiting.wake(request)
        if self.memory is not None:
            self.memory.reopen()
        self.slots.clear()
        self.adopted.clear()
        return lost

    def _leave(self, request: Request) -> None:
        """Take it out of the active request lists."""
        match request.state:
            case State.PREFILLING:
                del self.prefilling[request]
            case State.DECODING:
                del self.decoding[request]
            case State.DRAINING:
                del self.draining[request]
            case State.WAITING | State.FINISHED | State.GONE:
                raise AssertionError(f"{request.stream} is not active")
            case _:
                assert_never(request.state)

    def _vacate(self, request: Request) -> None:
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
            case State.WAITING:
                self.waiting.remove(request)
                if self.memory is not None:
                    self.memory.drop(request)
            case State.PREFILLING | State.DECODING:
                self._leave(request)
                self._vacate(request)
            case State.DRAINING:
                self._leave(request)
            case State.FINISHED | State.GONE:
                pass
            case _:
                assert_never(request.state)

    def _reclaimed(self, request: Request, blocks: int, steps: int, delay_us: int) -> None:
        self.news.append(Reclaimed(request.stream, blocks, steps, delay_us))
        counters = self.counters
        counters.reclaims += 1
        counters.reclaim_us_total += delay_us
        counters.reclaim_us_max = max(counters.reclaim_us_max, delay_us)
        counters.reclaim_steps_max = max(counters.reclaim_steps_max, steps)
