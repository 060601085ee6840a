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
class StepBuilder:
    """What the step holds so far.

    stalled: who lacks how many blocks of each group. left_pages: pages of each group that only exempt requests may take.
    chunk_index: where the chunks of prompts are among the slices. pairs: of tokens of chunks and the positions that they read.
    prefill_budget: the time that chunks may take; None where it is not bounded. decodes, passed, blocked_classes: for the record of
    decisions; the last by class, "" for all. withheld: query tokens of the budget that are left over on purpose.
    """

    number: int
    now_ns: int
    memory: CacheMemory
    tokens_left: int
    cache_left: int
    slices: list[Slice] = field(default_factory=list)
    entries: list[InFlightSlice] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    grows: list[Grow] = field(default_factory=list)
    prefilled: list[Request] = field(default_factory=list)
    drained: list[Request] = field(default_factory=list)
    stalled: dict[Request, Needs] = field(default_factory=dict)
    recomputed: int = 0
    tokens_max: int = 0
    left_pages: int = 0
    decodes: int = 0
    pairs: int = 0
    prefill_budget: PrefillBudget | None = None
    chunk_index: dict[Request, int] = field(default_factory=dict)
    passed: list[PassedOver] = field(default_factory=list)
    blocked_classes: dict[str, WaitReason] = field(default_factory=dict)
    withheld: int = 0

    def withhold(self, keep: int) -> None:
        """Leave at most `keep` query tokens of the budget to those who come after."""
        self.withheld = max(0, self.tokens_left - keep)
        self.tokens_left -= self.withheld

    @property
    def has_room(self) -> bool:
        """Whether another chunk of a prompt may find a place."""
        return self.prompt_tokens(0) > 0

    def prompt_tokens(self, start: int) -> int:
        """How many tokens of a prompt, from position `start` on, the step may hold now."""
        if self.prefill_budget is None or not self.tokens_left:
            return self.tokens_left
        return min(self.tokens_left, self.prefill_budget.tokens(start, new=True))

    def set_prefill_budget(self, prefill_budget: PrefillBudget | None) -> None:
        """Bound the time of chunks from now on; those that the step has already count."""
        self.prefill_budget = prefill_budget
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
        take = min(request.work.filled - start, self.tokens_left)
        if most is not None:
            take = min(take, most)
        chunk_index = self.chunk_index.get(request)
        if chunk_index is not None:
            take = min(take, self.cache_left)
        elif self.slices:
            take = min(take, self.cache_left - start)
        if ahead and start + take == request.work.filled:
            take -= 1
        if take > 0 and self.prefill_budget is not None:
            take = min(take, self.prefill_budget.tokens(start, new=chunk_index is None))
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
        self.passed.append(PassedOver(request.stream, reason))

    def block(self, request: Request, reason: WaitReason, traffic_class: str = "") -> None:
        """Note that a waiting request, and with it all of its class or of all, is not admitted into this step."""
        self.pass_over(request, reason)
        self.blocked_classes.setdefault(traffic_class, reason)

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
            self.cache_left -= end
            request.work.slices += 1
            self._put(request, start, end, request.work.outputs if sample else -1)
            self.chunk_index[request] = len(self.slices) - 1
        else:
            self.cache_left -= take
            first = self.slices[chunk_index].start
            self._put(request, first, end, request.work.outputs if sample else -1)
            self.slices[chunk_index], self.entries[chunk_index] = self.slices.pop(), self.entries.pop()
        self.pairs += take * (start + end) // 2
        if self.prefill_budget is not None:
            self.prefill_budget.spend(start, take, new=chunk_index is None)
        self.recomputed += max(0, min(end, request.work.computed) - start)
        request.work.length = end
        request.work.last_step = self.number
        self.tokens_left -= take
        if sample:
            request.work.outputs += 1
            self.prefilled.append(request)
            if request.work.outputs == request.progress.limit:
                self.drained.append(request)

    def _put(self, request: Request, start: int, end: int, output: int) -> None:
        assert request.cache.blocks is not None
        self.slices.append(Slice(request.slot, start, end - start, False, output >= 0))
        self.entries.append(InFlightSlice(request, output, end - start, end, request.cache.blocks))
