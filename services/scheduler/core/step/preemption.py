"""Preempts running requests when others of them lack blocks: the fewest, the newest, and never the last one."""

from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle
from noria.services.scheduler.core.step.step_builder import StepBuilder


class Preemption:
    """Preempts for the blocks that stalled requests lack."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._lifecycle = RequestLifecycle(state)

    def give_way(self, builder: StepBuilder) -> bool:
        """Preempt the fewest, newest requests for the blocks that stalled ones lack; True when one was preempted.

        Blocks that steps in flight give back are not asked for again. Nobody gives way to a newer one, and nobody twice
        without a token in between, except to the oldest of all.
        """
        state, cache = self._state, builder.cache
        demand = tuple(map(sum, zip(*builder.stalled.values(), strict=True)))
        spared = 0 if all(request.exempt for request in builder.stalled) else builder.left_pages
        lacking = (
            cache.units(demand) + spared * cache.units(cache.page) - cache.available - state.in_flight.freeing_units
        )
        if not state.in_flight.freeing_units and not cache.fits(demand, 0, spared):
            # Nothing that comes by itself helps, though in sum there may be enough: in chunks that another group began.
            lacking = max(lacking, 1)
        policy = state.policy
        victims = sorted([*state.prefilling, *state.decoding], key=policy.precedence, reverse=True)
        first = min(builder.stalled, key=policy.precedence)
        desperate = not builder.slices and not state.in_flight.steps
        preempted = False
        for victim in victims:
            if lacking <= 0 or victim is first:
                break
            if policy.spares(victim, first, top=first is victims[-1], desperate=desperate):
                continue
            assert victim.cache.blocks is not None
            lacking -= cache.gain(victim.cache.blocks)
            if victim in builder.stalled:
                lacking -= cache.units(builder.stalled[victim])
            self._lifecycle.preempt(victim, builder.now_ns)
            preempted = True
        return preempted

    def gather(self, builder: StepBuilder) -> bool:
        """Move the blocks of the only request that holds any together, where nobody can give way.

        True when that made a chunk free. There are no other holders: no step is in flight, and kinds of attention that differ share no
        pages.
        """
        state = self._state
        running = [*state.prefilling, *state.decoding]
        if state.in_flight.steps or len(running) != 1 or state.memory is None:
            return False
        return state.memory.gather(running[0])
