"""Takes over what an executor still holds of streams, after this scheduler or its predecessor lost sight of it.

An executor that holds something says so in its `Geometry`, and its `Inventory` follows when no step is under way any more.
Nothing is planned before that is there and admission has named its streams, or time is up. Then each stream that waits is
compared with what the executor has of it: only a cache of exactly its ids is taken over, with what was sampled and never
reported. All else is blank from the plan on that opens the epoch.
"""

from collections.abc import Sequence

from noria.proto.execution import Geometry, Held, Inventory, cache_digest
from noria.services.scheduler.core.handlers.stream_handler import StreamHandler, token_run
from noria.services.scheduler.core.state.request import Request, RequestStatus
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle


class CacheAdoption:
    """Waits for an inventory and applies it. due_ns: until when; None when it waits for nothing."""

    def __init__(self, state: SchedulerState, intake: StreamHandler) -> None:
        self._state = state
        self._lifecycle = RequestLifecycle(state)
        self._intake = intake
        self._inventory: Inventory | None = None
        self.due_ns: int | None = None

    def executor_joined(self, now_ns: int, geometry: Geometry) -> None:
        """Begin to wait for the inventory of an executor that holds something."""
        self._inventory = self.due_ns = None
        if geometry.inventory:
            self.due_ns = now_ns + self._state.settings.adoption_wait_ns
            self._state.slots.clear()  # what is in them it learns from the plan that opens the epoch

    def executor_lost(self) -> None:
        """Stop waiting: the executor that would have sent an inventory is gone."""
        self._inventory = self.due_ns = None

    def inventory_received(self, inventory: Inventory) -> None:
        """Keep the executor's list of what it holds; one that comes too late is ignored."""
        if self.due_ns is not None:
            self._inventory = inventory

    def settle(self, now_ns: int) -> None:
        """Take over what matches, once inventory and streams are known or time is up."""
        if self.due_ns is None:
            return
        if now_ns < self.due_ns and (self._inventory is None or not self._intake.names_complete):
            return
        inventory, self._inventory, self.due_ns = self._inventory, None, None
        if inventory is None:
            return
        self._state.in_flight.skip(inventory.epoch)
        requests = self._state.requests
        known = [(requests[held.stream], held) for held in inventory.entries if held.stream in requests]
        for request, held in sorted(known, key=lambda pair: pair[0].asked.seniority):
            if request.state is RequestStatus.WAITING and request.cache.blocks is None and request.cache.host is None:
                self._take(request, held, now_ns)

    def adopt(self, request: Request, blocks: Sequence[Sequence[int]], length: int, now_ns: int) -> bool:
        """Give a waiting request a slot, and blocks in which `length` positions of it are computed already.

        The plan that opens the epoch names its ids. False, changing nothing, when there is no slot or a block is taken.
        """
        memory = self._state.memory
        if memory is None or not self._state.slots.free or not memory.adopt(request, blocks, length, now_ns):
            return False
        self._lifecycle.adopt(request, length, now_ns)
        return True

    def adopt_stored(self, request: Request, blocks: Sequence[Sequence[int]], length: int) -> bool:
        """Let a waiting request come back from the host, where these blocks hold `length` positions of it.

        False, changing nothing, when a block is another's.
        """
        state = self._state
        stored = state.memory.host.claim(blocks, length) if state.memory is not None else None
        if stored is None or state.memory is None:
            return False
        # Its place in the order changes with what it has on the host.
        state.waiting.pass_over(request)
        state.memory.adopt_stored(request, stored)
        state.waiting.wake(request)
        state.counters.adopted += 1
        state.counters.adopted_tokens += length
        return True

    def _take(self, request: Request, held: Held, now_ns: int) -> None:
        if held.attempt != request.attempt or not _same(request, held):
            return
        self._learn_output(request, held, now_ns)
        if request.state is not RequestStatus.WAITING:
            return
        # At least one token is computed, so that there is something to sample from.
        length = min(held.length, request.known - 1)
        if length <= 0:
            return
        if held.slot >= 0:
            self.adopt(request, held.blocks, length, now_ns)
        else:
            self.adopt_stored(request, held.blocks, length)

    def _learn_output(self, request: Request, held: Held, now_ns: int) -> None:
        """Take the output that the executor sampled and nobody here knows, up to the end if it is there."""
        state, start = self._state, len(request.progress.output)
        end = None
        for position in range(start, len(held.output_ids)):
            request.progress.output.append(held.output_ids[position])
            state.waiting.learned()
            end = request.natural_end
            if end is not None:
                break
        beyond = len(held.output_ids) - len(request.progress.output)
        if held.likelihoods and beyond >= 0:
            request.progress.logprobs = list(held.likelihoods[: len(held.likelihoods) - beyond])
        if len(request.progress.output) == start:
            return
        self._lifecycle.replan(request)
        state.policy.taken_over(request)
        if request.suspicion.suspected and len(request.progress.output) > request.suspicion.suspected_at:
            self._lifecycle.clear(request)
        if end is not None:
            self._lifecycle.finish(request, end, now_ns)
        state.replies.append(token_run(request, start, tuple(request.progress.output[start:])))


def _same(request: Request, held: Held) -> bool:
    """Whether the cache holds the stream's own ids, as far as both reach."""
    prompt, output = request.asked.submission.prompt_ids, request.progress.output
    if any(one != other for one, other in zip(output, held.output_ids, strict=False)):
        return False
    ids = (*prompt, *held.output_ids)
    return held.length <= len(ids) and cache_digest(ids[: held.length]) == held.digest
