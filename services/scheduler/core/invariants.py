"""What must hold of the scheduler's state after every event and plan."""

from itertools import chain

from noria.services.scheduler.core.state.request import Request, RequestStatus
from noria.services.scheduler.core.state.scheduler_state import SchedulerState


def check(state: SchedulerState) -> None:
    """Raises AssertionError when an invariant does not hold. Costs as much as all requests and blocks."""
    state.waiting.check()
    running = [*state.prefilling, *state.decoding]
    in_flight: dict[Request, int] = {}
    for entry in chain.from_iterable(step.entries for step in state.in_flight.steps):
        in_flight[entry.request] = in_flight.get(entry.request, 0) + 1
    _check_requests(state, in_flight)
    state.suspects.check(state.requests.values())
    state.deadlines.check(list(state.requests.values()))
    state.slots.check([request.slot for request in running])
    assert len(state.in_flight.steps) <= state.settings.steps_in_flight
    assert state.in_flight.numbers == list(
        range(state.in_flight.number - len(state.in_flight.steps) + 1, state.in_flight.number + 1)
    )
    retired = [each.blocks for step in state.in_flight.steps for each in step.retired]
    spare = [blocks for step in state.in_flight.steps for blocks in step.spare]
    assert state.in_flight.freeing_units == sum(step.gain for step in state.in_flight.steps)
    memory = state.memory
    if memory is None:
        assert not running and not retired and not in_flight
        return
    held = [request.cache.blocks for request in running if request.cache.blocks is not None]
    assert len(held) == len(running)
    memory.cache.check([*held, *retired], spare)
    memory.waiters.check([*held, *retired])
    memory.host.check([request.cache.host for request in state.waiting if request.cache.host is not None])
    assert memory.cache.promised == sum(request.cache.promised for request in running)
    for request in running:
        assert request.cache.blocks is not None
        assert request.cache.room == memory.cache.room(request.cache.blocks)
        assert request.work.length <= request.cache.room
        assert len(request.cache.blocks.pages) * memory.cache.page_tokens <= request.work.length


def _check_requests(state: SchedulerState, in_flight: dict[Request, int]) -> None:
    states = {
        RequestStatus.WAITING: 0,
        RequestStatus.PREFILLING: 0,
        RequestStatus.DECODING: 0,
        RequestStatus.DRAINING: 0,
        RequestStatus.FINISHED: 0,
    }
    for stream, request in state.requests.items():
        assert request.stream == stream
        states[request.state] += 1
        assert request.in_flight == in_flight.get(request, 0)
        assert len(request.progress.output) <= request.work.outputs or request.state is RequestStatus.FINISHED
        if request.state in (RequestStatus.PREFILLING, RequestStatus.DECODING):
            assert request.slot >= 0
            assert request.work.outputs < request.progress.limit
            assert request.work.length <= request.asked.prompt_tokens + request.work.outputs
            assert request not in state.adopted or (
                request.state is RequestStatus.PREFILLING and not state.in_flight.number
            )
        else:
            assert request not in state.adopted
            assert request.slot == -1 and request.cache.blocks is None and not request.cache.promised
        assert request.cache.host is None or request.state is RequestStatus.WAITING
        state.policy.check(request)
        if request.state is RequestStatus.DECODING:
            assert request.work.length == request.asked.prompt_tokens + request.work.outputs - 1 >= request.work.filled
        if request.state is RequestStatus.PREFILLING:
            assert request.work.length < request.work.filled == request.known
    assert states == {
        RequestStatus.WAITING: len(state.waiting),
        RequestStatus.PREFILLING: len(state.prefilling),
        RequestStatus.DECODING: len(state.decoding),
        RequestStatus.DRAINING: len(state.draining),
        RequestStatus.FINISHED: state.finished,
    }
