"""Takes over what an executor still holds of streams, after this scheduler or its predecessor lost sight of it.

An executor that holds something says so in its `Geometry`, and its `Inventory` follows when no step is under way any
more. Nothing is planned before that is there and admission has named its streams, or time is up. Then each stream that
waits is compared with what the executor has of it: only a cache of exactly its ids is taken over, whatever was sampled
and not heard of yet included. All else is blank from the plan on that opens the epoch.
"""

from noria.proto.execution import Geometry, Held, Inventory, cache_digest
from noria.services.scheduler.core.board import Board
from noria.services.scheduler.core.intake import Intake, token_run
from noria.services.scheduler.core.request import Request, State, natural_end


class Adoption:
    """Waits for an inventory and applies it. due_ns: until when; None when nothing is waited for."""

    def __init__(self, board: Board, intake: Intake) -> None:
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
            if request.state is State.WAITING and request.held is None and request.stored is None:
                self._take(request, held, now_ns)

    def _take(self, request: Request, held: Held, now_ns: int) -> None:
        if held.attempt != request.attempt or not _same(request, held):
            return
        self._learn(request, held, now_ns)
        if request.state is not State.WAITING:
            return
        # At least one token is computed, so that there is something to sample from.
        length = min(held.length, request.known - 1)
        if length <= 0:
            return
        if held.slot >= 0:
            self._board.adopt(request, held.blocks, length, now_ns)
        else:
            self._board.adopt_stored(request, held.blocks, length)

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
