"""Epochs of the executor: a new one begins on an empty cache, or on another executor's, and no request is lost by it."""

from noria.proto.execution import Geometry
from noria.services.scheduler.core.state.cache_memory import CacheMemory, forget_prefixes
from noria.services.scheduler.core.state.free_slots import FreeSlots
from noria.services.scheduler.core.state.in_flight_steps import InFlightStep
from noria.services.scheduler.core.state.request import RequestStatus
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle


def reopen(state: SchedulerState, lifecycle: RequestLifecycle, now_ns: int) -> list[InFlightStep]:
    """Begin a new epoch: nothing is in any slot, whoever was active or swapped out waits to be computed again.

    Published pages stay, for their content was complete before. Returns the lost steps.
    """
    lost = state.in_flight.reopen()
    for step in lost:
        for entry in step.entries:
            request = entry.request
            if request.in_flight and request.state is RequestStatus.GONE:
                state.reclaims.spent(request)
            request.work.slices = request.progress.results
        if state.memory is not None:
            state.reclaims.freed(state.memory.free(step), now_ns)
    for request in (*state.prefilling, *state.decoding, *state.draining):
        lifecycle.reset(request, now_ns)
    for request in state.waiting:
        lifecycle.replan(request)
        if request.cache.host is not None:
            lifecycle.lose_stored(request)
        state.waiting.wake(request)
    if state.memory is not None:
        state.memory.reopen()
    state.slots.clear()
    state.adopted.clear()
    return lost


def install(state: SchedulerState, geometry: Geometry | None) -> None:
    """Take a new executor's cache and slots, or none; nothing may be running."""
    assert not state.running
    state.geometry = geometry
    state.memory = None
    forget_prefixes(state.requests.values())
    if geometry is not None:
        sharing = state.settings.allow_block_sharing
        memory = state.memory = CacheMemory(geometry, state.in_flight, state.waiting.wake, sharing=sharing)
        memory.cache.keep(state.policy.kept(memory.cache.pages, memory.cache.page_tokens))
    count = min(state.settings.max_requests_per_batch, geometry.max_slots) if geometry else 0
    state.slots = FreeSlots(count)
