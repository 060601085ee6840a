"""Builds the next step: who computes how many tokens, who is admitted, and who gives way when blocks run out.

Two budgets are spent while it is built, query tokens and cached tokens read; slots bound the requests. Whoever lacks
blocks stalls, nobody is admitted past a stalled request, and once the plan is made the newest give way to it.
"""

from typing import Final

from noria.proto.execution import StepPlan
from noria.services.scheduler.core.cache.cache_allocator import CacheAllocator
from noria.services.scheduler.core.policy.policies import composition_for
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.in_flight_steps import InFlightStep
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.step_decisions import StepDecision, WaitReason
from noria.services.scheduler.core.step.preemption import Preemption
from noria.services.scheduler.core.step.step_builder import StepBuilder

_UNLIMITED = 1 << 62
# A long step is followed by one that is planned late, so that it holds who came meanwhile: so long before the end that
# is predicted, and in any case this part of what is left, which covers the error of predictions.
_LEAD_NS: Final = 10_000_000
_LEAD_PART: Final = 0.15


class StepPlanner:
    """Plans over a board. `token_limit` is set below the configured budget after a step ran out of memory.

    due_ns: when the next step is to be planned, if nothing happens before; None when only an event makes one possible.
    """

    def __init__(self, board: SchedulerState, times: StepTimePredictor) -> None:
        self._board = board
        self._times = times
        self._composition = composition_for(board, times)
        self._preemption = Preemption(board)
        self.token_limit = board.settings.max_batch_tokens
        self.due_ns: int | None = None

    @property
    def tokens_max(self) -> int:
        """The query tokens that a step may have as configured and as the executor allows."""
        geometry = self._board.geometry
        configured = self._board.settings.max_batch_tokens
        return min(configured, geometry.max_batch_tokens) if geometry else configured

    def change_policy(self) -> None:
        """The board has another policy: steps are composed as it says from now on."""
        self._composition = composition_for(self._board, self._times)

    def plan(self, now_ns: int) -> StepPlan | None:
        """Return the next step's plan, or None when no step can or need be sent now."""
        board, memory = self._board, self._board.memory
        self.due_ns = None
        if memory is None:
            board.decisions.held_up(now_ns, {"": WaitReason.EXECUTOR} if len(board.waiting) else {})
            return None
        # While there are suspects, steps are of them or of all others, one after the other: so nobody starves, and what
        # dies or fails says whose fault it was.
        in_flight_max = 1 if len(board.suspects) else board.settings.steps_in_flight
        if len(board.lane.steps) >= in_flight_max:
            return None
        self.due_ns = self._early(now_ns)
        if self.due_ns is not None:
            return None
        self._composition.prepare(now_ns)
        board.suspects.trial = not board.suspects.trial and len(board.suspects) > 0
        draft, untold = self._composed(now_ns, memory.cache)
        if not draft.slices and len(board.suspects):
            board.suspects.trial = not board.suspects.trial
            draft, more = self._composed(now_ns, memory.cache)
            untold = untold or more
        board.decisions.held_up(now_ns, draft.gates)
        # An executor without work must still learn which slots are empty.
        if not draft.slices and (board.lane.steps or not untold):
            return None
        return self._send(draft, memory)

    def _composed(self, now_ns: int, cache: CacheAllocator) -> tuple[StepBuilder, bool]:
        """The next step's draft, after others gave way where nobody could go on, and whether slots are to be told of."""
        board = self._board
        untold = board.slots.begin()
        draft = self._draft(now_ns, cache)
        while not draft.slices and not board.lane.steps and draft.stalled:
            # Nothing in flight can free a block: somebody gives way now, unless all wait for the detokenizer.
            if not self._preemption.give_way(draft) and not self._preemption.gather(draft):
                break
            untold = board.slots.begin()
            draft = self._draft(now_ns, cache)
        return draft, untold

    def _early(self, now_ns: int) -> int | None:
        """When to plan the next step, if it is too early for that."""
        lane = self._board.lane
        free_ns = lane.free_ns if lane.steps and self._composition.patient else 0
        due_ns = free_ns - max(_LEAD_NS, int(_LEAD_PART * (free_ns - lane.busy_ns)))
        return due_ns if due_ns > now_ns else None

    def _draft(self, now_ns: int, cache: CacheAllocator) -> StepBuilder:
        board = self._board
        cache_left = board.settings.max_cache_tokens or _UNLIMITED
        tokens_left = self._composition.tokens(min(self.tokens_max, self.token_limit))
        draft = StepBuilder(board.lane.number + 1, now_ns, cache, tokens_left, cache_left, tokens_max=tokens_left)
        if board.suspects.trial:
            self._composition.compose_only(draft, board.suspects.group)
        else:
            self._composition.compose(draft)
        return draft

    def _send(self, draft: StepBuilder, memory: CacheMemory) -> StepPlan:
        board = self._board
        tokens = draft.tokens_max - draft.tokens_left - draft.withheld
        cache_tokens = (board.settings.max_cache_tokens or _UNLIMITED) - draft.cache_left
        self._record(draft, tokens, cache_tokens)
        predicted_us = self._times.predict_us(tokens, cache_tokens, len(draft.entries), draft.pairs)
        step = InFlightStep(draft.number, draft.entries, tokens, cache_tokens, draft.pairs, predicted_us)
        board.lane.send(step, draft.now_ns)
        if board.adopted:
            draft.adopt(board.adopted)
            board.adopted.clear()
        orders = memory.orders()
        plan = StepPlan(
            epoch=board.lane.epoch,
            number=draft.number,
            slices=tuple(draft.slices),
            fill=tuple(draft.fills),
            grow=tuple(draft.grows),
            release=board.slots.releases(),
            swap_out=orders.swap_out,
            copies=orders.copies,
            swap_in=orders.swap_in,
            replace=orders.replace,
            stash=orders.stash,
            predicted_us=predicted_us,
        )
        board.counters.recomputed_tokens += draft.recomputed
        board.counters.evictions += memory.cache.evictions()
        for request in draft.prefilled:
            board.decode(request)
        for request in draft.drained:
            board.drain(request)
        if draft.stalled:
            self._preemption.give_way(draft)
        return plan

    def _record(self, draft: StepBuilder, tokens: int, cache_tokens: int) -> None:
        """Keep what was decided."""
        board = self._board
        board.decisions.decided(
            StepDecision(
                epoch=board.lane.epoch,
                number=draft.number,
                at_ns=draft.now_ns,
                tokens_max=draft.tokens_max - draft.withheld,
                tokens=tokens,
                cache_tokens=cache_tokens,
                decodes=draft.decodes,
                chunks=draft.chunks,
                admitted=tuple(each.stream for each in draft.fills),
                passed=tuple(draft.passed),
                running=board.running,
                waiting=len(board.waiting),
            )
        )
