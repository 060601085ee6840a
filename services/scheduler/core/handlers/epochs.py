"""Epochs of the executor: a new one begins on an empty cache, or on another executor's, and nobody is lost by it."""

from noria.proto.execution import Geometry
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.free_slots import FreeSlots
from noria.services.scheduler.core.state.in_flight_steps import InFlightStep
from noria.services.scheduler.core.state.request import RequestState
from noria.services.scheduler.core.state.scheduler_state import SchedulerState


def reopen(board: SchedulerState, now_ns: int) -> list[InFlightStep]:
    """Begin a new epoch: nothing is in any slot, whoever was active or swapped out waits to be computed again.

    Published pages stay, for their content was complete before. Returns the lost steps.
    """
    lost = board.lane.reopen()
    for step in lost:
        for entry in step.entries:
            if entry.request.in_flight and entry.request.state is RequestState.GONE:
                board.returns.spent(entry.request)
            entry.request.in_flight = 0
        board.returns.freed(board.memory, step, now_ns)
    for request in (*board.prefilling, *board.decoding, *board.draining):
        request.computed = max(request.computed, request.length)
        if request.state is not RequestState.DRAINING:
            board.vacate(request)
        board.leave(request)
        request.length = 0
        board.wait(request, now_ns, "epoch")
    for request in board.waiting:
        request.planned = len(request.output)
        request.in_flight = 0
        if request.stored is not None:
            request.computed = max(request.computed, request.stored.length)
            request.stored = None
        board.waiting.wake(request)
    if board.memory is not None:
        board.memory.reopen()
    board.slots.clear()
    board.adopted.clear()
    return lost


def install(board: SchedulerState, geometry: Geometry | None) -> None:
    """Take a new executor's cache and slots, or none; nothing may be running."""
    assert not board.running
    board.geometry = geometry
    board.memory = None
    for request in board.requests.values():
        request.prefix = None
    if geometry is not None:
        board.memory = CacheMemory(geometry, board.lane, board.waiting, sharing=board.settings.allow_block_sharing)
        board.memory.cache.keep(board.policy.kept(board.memory.cache.pages, board.memory.cache.page_tokens))
    count = min(board.settings.max_requests_per_batch, geometry.max_slots) if geometry else 0
    board.slots = FreeSlots(count)
