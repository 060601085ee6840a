"""Takes over what an executor still holds of streams, after this scheduler or its predecessor lost sight of it.

An executor that holds something says so in its `Geometry`, and its `Inventory` follows when no step is under way any
more. Nothing is planned before that is there and admission has named its streams, or time is up. Then each stream that
waits is compared with what the executor has of it: only a cache of exactly its ids is taken over, whatever was sampled
and not heard of yet included. All else is blank from the plan on that opens the epoch.
"""

from collections.abc import Sequence

from noria.proto.execution import Geometry, Held, Inventory, cache_digest
from noria.services.scheduler.core.handlers.stream_handler import StreamHandler, token_run
from noria.services.scheduler.core.interface.events import RequestPhase
from noria.services.scheduler.core.state.request import Request, RequestState, natural_end
from noria.services.scheduler.core.state.scheduler_state import SchedulerState


class CacheAdoption:
    """Waits for an inventory and applies it. due_ns: until when; None when nothing is waited for."""

    def __init__(self, board: SchedulerState, intake: StreamHandler) -> None:
        self._board = board
        self._intake = intake
        self._inventory: Inventory | None = None
        self.due_ns: int | None = None

    def executor_joined(self, now_ns: int, geometry: Geometry) -> None:
        """An executor is there; what it holds may be told soon."""
        self._inventory = self.due_ns = None
        if geometry.inventory:
            self.due_ns = now_ns + self._board.settings.adoption_wait_ns
            self._board.slots.clear()  # what is in them it learns from the plan that opens the epoch

    def executor_lost(self) -> None:
        """There is nothing to be had."""
        self._inventory = self.due_ns = None

    def told(self, inventory: Inventory) -> None:
        """The executor has listed what it holds; one that comes too late is ignored."""
        if self.due_ns is not None:
            self._inventory = inventory

    def settle(self, now_ns: int) -> None:
        """Take over what can be, once everything is there or time is up."""
        if self.due_ns is None:
            return
        if now_ns < self.due_ns and (self._inventory is None or not self._intake.recited):
            return
        inventory, self._inventory, self.due_ns = self._inventory, None, None
        if inventory is None:
            return
        self._board.lane.skip(inventory.epoch)
        requests = self._board.requests
        known = [(requests[held.stream], held) for held in inventory.entries if held.stream in requests]
        for request, held in sorted(known, key=lambda pair: pair[0].seniority):
            if request.state is RequestState.WAITING and request.held is None and request.stored is None:
                self._take(request, held, now_ns)

    def adopt(self, request: Request, blocks: Sequence[Sequence[int]], length: int, now_ns: int) -> bool:
        """Give a waiting request a slot, and blocks in which `length` positions of it are computed already.

        The plan that opens the epoch tells its ids. False, changing nothing, when there is no slot or a block is taken.
        """
        board = self._board
        if board.memory is None or not board.slots.free or not board.memory.adopt(request, blocks, length):
            return False
        board.waiting.remove(request)
        request.state = RequestState.PREFILLING
        request.slot = board.slots.take()
        request.held_ns, request.held_blocks = now_ns, request.held.blocks if request.held is not None else 0
        request.filled = request.known
        request.slot_planned = request.planned
        if request.started_ns is None:
            request.started_ns = request.received_ns
        board.prefilling[request] = None
        board.adopted[request] = None
        board.policy.adopted(request)
        board.counters.adopted += 1
        board.counters.adopted_tokens += length
        board.moved(request, RequestPhase.PREFILLING, now_ns, "adopted")
        return True

    def adopt_stored(self, request: Request, blocks: Sequence[Sequence[int]], length: int) -> bool:
        """Let a waiting request come back from the host, where these blocks hold `length` positions of it.

        False, changing nothing, when a block is another's.
        """
        board = self._board
        stored = board.memory.host.claim(blocks, length) if board.memory is not None else None
        if stored is None:
            return False
        # Its place in the order changes with it.
        board.waiting.pass_over(request)
        request.stored = stored
        board.waiting.wake(request)
        board.counters.adopted += 1
        board.counters.adopted_tokens += length
        return True

    def _take(self, request: Request, held: Held, now_ns: int) -> None:
        if held.attempt != request.attempt or not _same(request, held):
            return
        self._learn(request, held, now_ns)
        if request.state is not RequestState.WAITING:
            return
        # At least one token is computed, so that there is something to sample from.
        length = min(held.length, request.known - 1)
        if length <= 0:
            return
        if held.slot >= 0:
            self.adopt(request, held.blocks, length, now_ns)
        else:
            self.adopt_stored(request, held.blocks, length)

    def _learn(self, request: Request, held: Held, now_ns: int) -> None:
        """Take the output that the executor sampled and nobody here has heard of, up to the end if it is there."""
        board, start = self._board, len(request.output)
        end = None
        for position in range(start, len(held.output_ids)):
            request.output.append(held.output_ids[position])
            board.waiting.learned()
            end = natural_end(request)
            if end is not None:
                break
        beyond = len(held.output_ids) - len(request.output)
        if held.likelihoods and beyond >= 0:
            request.likelihoods = list(held.likelihoods[: len(held.likelihoods) - beyond])
        if len(request.output) == start:
            return
        request.planned = len(request.output)
        board.policy.adopted(request)
        if request.suspected and len(request.output) > request.suspected_at:
            board.clear(request)
        if end is not None:
            board.finish(request, end, now_ns)
        board.news.append(token_run(request, start, tuple(request.output[start:])))


def _same(request: Request, held: Held) -> bool:
    """Whether the cache holds the stream's own ids, as far as both reach."""
    prompt, output = request.submission.prompt_ids, request.output
    if any(one != other for one, other in zip(output, held.output_ids, strict=False)):
        return False
    ids = (*prompt, *held.output_ids)
    return held.length <= len(ids) and cache_digest(ids[: held.length]) == held.digest
