"""What must hold on a board after every event and plan."""

from itertools import chain

from noria.services.scheduler.core.policy.fair_policy import FairPolicy
from noria.services.scheduler.core.policy.policy import Policy
from noria.services.scheduler.core.state.request import Request, RequestState
from noria.services.scheduler.core.state.scheduler_state import SchedulerState


def check(board: SchedulerState) -> None:
    """State the invariants; raises AssertionError when one does not hold. Costs as much as all requests and blocks."""
    board.waiting.check()
    running = [*board.prefilling, *board.decoding]
    in_flight: dict[Request, int] = {}
    for entry in chain.from_iterable(step.entries for step in board.lane.steps):
        in_flight[entry.request] = in_flight.get(entry.request, 0) + 1
    _check_requests(board, in_flight)
    board.suspects.check(board.requests.values())
    board.deadlines.check(list(board.requests.values()), board.now_ns)
    board.slots.check([request.slot for request in running])
    assert len(board.lane.steps) <= board.settings.steps_in_flight
    assert board.lane.numbers == list(range(board.lane.number - len(board.lane.steps) + 1, board.lane.number + 1))
    retired = [each.holding for step in board.lane.steps for each in step.retired]
    spare = [blocks for step in board.lane.steps for blocks in step.spare]
    assert board.lane.soon_free == sum(step.gain for step in board.lane.steps)
    memory = board.memory
    if memory is None:
        assert not running and not retired and not in_flight
        return
    held = [request.held for request in running if request.held is not None]
    assert len(held) == len(running)
    memory.cache.check([*held, *retired], spare)
    memory.twins.check([*held, *retired])
    memory.host.check([request.stored for request in board.waiting if request.stored is not None])
    assert memory.cache.promised == sum(request.promised for request in running)
    for request in running:
        assert request.held is not None
        assert request.room == memory.cache.room(request.held)
        assert request.length <= request.room
        assert len(request.held.pages) * memory.cache.page_tokens <= request.length


def _check_account(policy: Policy, request: Request) -> None:
    """What was planned for a request is charged to its account, and nothing else."""
    account = request.account
    if not isinstance(policy, FairPolicy):
        assert account is None and not request.rank
        return
    assert account is not None and request.rank == account.share.terms.rank
    assert policy.accounts.account(request.submission.traffic_class, request.submission.tenant) is account
    assert request.prompt_before <= request.paid_prompt <= request.prompt_tokens
    assert min(request.length, request.prompt_tokens) <= request.paid_prompt
    assert request.output_before <= request.paid_output and request.planned <= request.paid_output


def _check_requests(board: SchedulerState, in_flight: dict[Request, int]) -> None:
    states = {
        RequestState.WAITING: 0,
        RequestState.PREFILLING: 0,
        RequestState.DECODING: 0,
        RequestState.DRAINING: 0,
        RequestState.FINISHED: 0,
    }
    for stream, request in board.requests.items():
        assert request.stream == stream
        states[request.state] += 1
        assert request.in_flight == in_flight.get(request, 0)
        assert len(request.output) <= request.planned or request.state is RequestState.FINISHED
        if request.state in (RequestState.PREFILLING, RequestState.DECODING):
            assert request.slot >= 0
            assert request.planned < request.limit
            assert request.length <= request.prompt_tokens + request.planned
            assert request not in board.adopted or (request.state is RequestState.PREFILLING and not board.lane.number)
        else:
            assert request not in board.adopted
            assert request.slot == -1 and request.held is None and not request.promised
        assert request.stored is None or request.state is RequestState.WAITING
        _check_account(board.policy, request)
        if request.state is RequestState.DECODING:
            assert request.length == request.prompt_tokens + request.planned - 1 >= request.filled
        if request.state is RequestState.PREFILLING:
            assert request.length < request.filled == request.known
    assert states == {
        RequestState.WAITING: len(board.waiting),
        RequestState.PREFILLING: len(board.prefilling),
        RequestState.DECODING: len(board.decoding),
        RequestState.DRAINING: len(board.draining),
        RequestState.FINISHED: board.finished,
    }
