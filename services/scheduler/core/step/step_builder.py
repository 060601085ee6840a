"""A step's plan while it is put together, with what is left of its budgets."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from noria.proto.base import Stream
from noria.proto.execution import Fill, Grow, Slice
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.cache.request_blocks import Needs
from noria.services.scheduler.core.predict.prefill_budget import PrefillBudget
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.in_flight_steps import InFlightSlice
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.step_decisions import PassedOver, WaitReason


@dataclass(slots=True, eq=False)
class StepBudget:
    """What is left of the budgets of one step."""

    # Query tokens, and cached tokens read, that the step may still have.
    tokens_left: int
    cache_left: int
    # Query tokens that it had at first, and how many of them are left over on purpose.
    tokens_max: int
    withheld: int = 0
    # The time that chunks of prompts may take; None where it is not bounded.
    prefill_budget: PrefillBudget | None = None


@dataclass(slots=True, eq=False)
class StepRecord:
    """What is written down of one step."""

    # Sequences that continue by one token.
    decodes: int = 0
    # Positions that are computed again.
    recomputed: int = 0
    # Of tokens of chunks and the positions that they read.
    pairs: int = 0
    # Who got nothing, and why.
    passed: list[PassedOver] = field(default_factory=list)
    # What holds up the arrivals of a class; "" for all classes.
    blocked_classes: dict[str, WaitReason] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class StepBuilder:
    """A step's plan in the making."""

    # The step's number in its epoch, and when it is planned (nanoseconds).
    number: int
    now_ns: int
    # The cache that it may allocate from.
    memory: CacheMemory
    budget: StepBudget
    # The plan: slices with what the scheduler remembers of each, slots to fill, blocks to append to tables.
    slices: list[Slice] = field(default_factory=list)
    entries: list[InFlightSlice] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    grows: list[Grow] = field(default_factory=list)
    # Requests whose last known id it computes, and those whose last token it generates.
    prefilled: list[Request] = field(default_factory=list)
    drained: list[Request] = field(default_factory=list)
    # Running requests that lack blocks, and how many of each group.
    stalled: dict[Request, Needs] = field(default_factory=dict)
    # Pages of each group that only exempt requests may take.
    left_pages: int = 0
    # Where the chunk of each prompt is among the slices.
    chunk_index: dict[Request, int] = field(default_factory=dict)
    record: StepRecord = field(default_factory=StepRecord)

    def withhold(self, keep: int) -> None:
        """Leave at most `keep` query tokens of the budget to those who come after."""
        self.budget.withheld = max(0, self.budget.tokens_left - keep)
        self.budget.tokens_left -= self.budget.withheld

    @property
    def has_room(self) -> bool:
        """Whether another chunk of a prompt may find a place."""
        return self.prompt_tokens(0) > 0

    def prompt_tokens(self, start: int) -> int:
        """How many tokens of a prompt, from position `start` on, the step may hold now."""
        if self.budget.prefill_budget is None or not self.budget.tokens_left:
            return self.budget.tokens_left
        return min(self.budget.tokens_left, self.budget.prefill_budget.tokens(start, new=True))

    def set_prefill_budget(self, prefill_budget: PrefillBudget | None) -> None:
        """Bound the time of chunks from now on; those that the step has already count."""
        self.budget.prefill_budget = prefill_budget
        if prefill_budget is not None:
            for index in self.chunk_index.values():
                part = self.slices[index]
                prefill_budget.spend(part.start, part.length, new=True)

    @property
    def cache(self) -> CacheAllocator:
        """The cache that the step may grow into."""
        return self.memory.cache

    def make_room(self, request: Request, length: int) -> bool:
        """Allocate for `length` positions of a request, or note that it stalls."""
        added = self.memory.grow(request, length, 0 if request.exempt else self.left_pages)
        if added is None:
            assert request.cache.blocks is not None
            self.stalled[request] = self.cache.lacks(request.cache.blocks, length)
            return False
        self.grows += [Grow(request.slot, group, blocks) for group, blocks in enumerate(added) if blocks]
        return True

    def chunk(self, request: Request, *, ahead: bool, most: int | None = None) -> None:
        """Plan as much of a prompt, or of tokens to be recomputed, as budgets and blocks allow; `most` tokens at most.

        A chunk that the step holds already is made longer. ahead: its next token must wait, so that its last known id is
        not computed yet.
        """
        start = request.work.length
        take = min(request.work.filled - start, self.budget.tokens_left)
        if most is not None:
            take = min(take, most)
        chunk_index = self.chunk_index.get(request)
        if chunk_index is not None:
            take = min(take, self.budget.cache_left)
        elif self.slices:
            take = min(take, self.budget.cache_left - start)
        if ahead and start + take == request.work.filled:
            take -= 1
        if take > 0 and self.budget.prefill_budget is not None:
            take = min(take, self.budget.prefill_budget.tokens(start, new=chunk_index is None))
        if take <= 0:
            return
        if start + take > request.cache.room and not self.make_room(request, start + take):
            assert request.cache.blocks is not None
            reachable = self.cache.reachable(
                request.cache.blocks, start + take, 0 if request.exempt else self.left_pages
            )
            if reachable <= start or not self.make_room(request, reachable):
                return
            take = reachable - start
            self.stalled.pop(request, None)
        self._add(request, start, take)

    @property
    def chunks(self) -> tuple[tuple[Stream, int], ...]:
        """Prompts, or tokens to be recomputed, of which the step has a part, and how many tokens."""
        return tuple((request.stream, self.slices[index].length) for request, index in self.chunk_index.items())

    def pass_over(self, request: Request, reason: WaitReason) -> None:
        """Note that a request gets nothing in this step."""
        self.record.passed.append(PassedOver(request.stream, reason))

    def block(self, request: Request, reason: WaitReason, traffic_class: str = "") -> None:
        """Note that a waiting request, and with it all of its class or of all, is not admitted into this step."""
        self.pass_over(request, reason)
        self.record.blocked_classes.setdefault(traffic_class, reason)

    def fill(self, request: Request) -> None:
        """Put a request that was just admitted into its slot, with all that it knows and holds."""
        self.fills.append(self._fill_of(request))

    def adopt(self, requests: Iterable[Request]) -> None:
        """Put requests whose cache was taken over into their slots, with their whole block tables."""
        fills = [self._fill_of(request) for request in requests]
        slots = {fill.slot for fill in fills}
        self.grows = [grow for grow in self.grows if grow.slot not in slots]
        self.fills = [*fills, *self.fills]

    def _fill_of(self, request: Request) -> Fill:
        assert request.cache.blocks is not None
        submission, chunk_index = request.asked.submission, self.chunk_index.get(request)
        return Fill(
            slot=request.slot,
            stream=request.stream,
            attempt=request.attempt,
            prompt_ids=submission.prompt_ids,
            output_ids=tuple(request.progress.output),
            sampling=submission.sampling,
            end_ids=submission.end_ids,
            blocks=tuple(map(tuple, request.cache.blocks.tables)),
            cached=request.work.length if chunk_index is None else self.slices[chunk_index].start,
            traceparent=submission.traceparent,
        )

    def _add(self, request: Request, start: int, take: int) -> None:
        assert request.cache.blocks is not None
        end = start + take
        sample = end == request.work.filled
        chunk_index = self.chunk_index.get(request)
        if chunk_index is None:
            self.budget.cache_left -= end
            request.work.slices += 1
            self._put(request, start, end, request.work.outputs if sample else -1)
            self.chunk_index[request] = len(self.slices) - 1
        else:
            self.budget.cache_left -= take
            first = self.slices[chunk_index].start
            self._put(request, first, end, request.work.outputs if sample else -1)
            self.slices[chunk_index], self.entries[chunk_index] = self.slices.pop(), self.entries.pop()
        self.record.pairs += take * (start + end) // 2
        if self.budget.prefill_budget is not None:
            self.budget.prefill_budget.spend(start, take, new=chunk_index is None)
        self.record.recomputed += max(0, min(end, request.work.computed) - start)
        request.work.length = end
        request.work.last_step = self.number
        self.budget.tokens_left -= take
        if sample:
            request.work.outputs += 1
            self.prefilled.append(request)
            if request.work.outputs == request.progress.limit:
                self.drained.append(request)

    def _put(self, request: Request, start: int, end: int, output: int) -> None:
        assert request.cache.blocks is not None
        self.slices.append(Slice(request.slot, start, end - start, False, output >= 0))
        self.entries.append(InFlightSlice(request, output, end - start, end, request.cache.blocks))
