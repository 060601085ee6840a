"""Who gives way when running requests lack blocks: the fewest, the newest, and never the last one."""

from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.step_builder import StepBuilder


class Preemption:
    """Preempts for the demand of stalled requests."""

    def __init__(self, board: SchedulerState) -> None:
        self._board = board

    def give_way(self, draft: StepBuilder) -> bool:
        """Preempt the fewest, newest requests for the blocks that stalled ones lack; True when one was preempted.

        Blocks that steps in flight give back are not asked for again. Nobody gives way to a newer one, and nobody twice
        without a token in between, except to the oldest of all.
        """
        board, cache = self._board, draft.cache
        demand = tuple(map(sum, zip(*draft.stalled.values(), strict=True)))
        spared = 0 if all(request.exempt for request in draft.stalled) else draft.spared
        lacking = cache.units(demand) + spared * cache.units(cache.page) - cache.available - board.lane.soon_free
        if not board.lane.soon_free and not cache.fits(demand, 0, spared):
            # Nothing that comes by itself helps, though in sum there may be enough: in chunks that another group began.
            lacking = max(lacking, 1)
        policy = board.policy
        victims = sorted([*board.prefilling, *board.decoding], key=policy.precedence, reverse=True)
        first = min(draft.stalled, key=policy.precedence)
        desperate = not draft.slices and not board.lane.steps
        preempted = False
        for victim in victims:
            if lacking <= 0 or victim is first:
                break
            if policy.spares(victim, first, top=first is victims[-1], desperate=desperate):
                continue
            assert victim.held is not None
            lacking -= cache.gain(victim.held)
            if victim in draft.stalled:
                lacking -= cache.units(draft.stalled[victim])
            board.preempt(victim, draft.now_ns)
            preempted = True
        return preempted

    def gather(self, draft: StepBuilder) -> bool:
        """Nobody can give way: where one request alone holds parts of many chunks, move them together.

        True when that made a chunk free. Other holders there are none: no step is in flight, and kinds of attention that
        differ share no pages.
        """
        board = self._board
        running = [*board.prefilling, *board.decoding]
        if board.lane.steps or len(running) != 1 or board.memory is None:
            return False
        return board.memory.gather(running[0])
