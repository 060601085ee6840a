"""Plans the next step: who computes how many tokens, who is admitted, and who gives way when blocks run out.

Two budgets are spent while it is built, query tokens and cached tokens read; slots bound the requests. A request that lacks
blocks stalls, nobody is admitted past a stalled request, and once the plan is made the newest give way to it.
"""

from typing import Final

from noria.proto.execution import StepPlan
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.cache_memory import CacheMemory
from noria.services.scheduler.core.state.in_flight_steps import InFlightStep
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.step_decisions import StepDecision, WaitReason
from noria.services.scheduler.core.step.preemption import Preemption
from noria.services.scheduler.core.step.request_lifecycle import RequestLifecycle
from noria.services.scheduler.core.step.step_builder import StepBudget, StepBuilder
from noria.services.scheduler.core.step.step_composer import StepComposer

_UNLIMITED = 1 << 62
# A long step is followed by one that is planned late, so that it holds who came meanwhile: so long before the end that
# is predicted, and in any case this part of what is left, which covers the error of predictions.
_LEAD_NS: Final = 10_000_000
_LEAD_PART: Final = 0.15


class StepPlanner:
    """Plans the steps of one scheduler. token_limit: set below the configured budget after a step ran out of memory.

    due_ns: when the next step is to be planned, if nothing happens before; None when only an event makes one possible.
    """

    def __init__(self, state: SchedulerState, times: StepTimePredictor, composer: StepComposer) -> None:
        self._state = state
        self._times = times
        self._composer = composer
        self._preemption = Preemption(state)
        self._lifecycle = RequestLifecycle(state)
        self.token_limit = state.settings.max_batch_tokens
        self.due_ns: int | None = None

    @property
    def tokens_max(self) -> int:
        """The query tokens that a step may have as configured and as the executor allows."""
        geometry = self._state.geometry
        configured = self._state.settings.max_batch_tokens
        return min(configured, geometry.max_batch_tokens) if geometry else configured

    def change_composer(self, composer: StepComposer) -> None:
        """Compose steps as another policy says from now on."""
        self._composer = composer

    def plan(self, now_ns: int) -> StepPlan | None:
        """Return the next step's plan, or None when no step can or need be sent now."""
        state, memory = self._state, self._state.memory
        self.due_ns = None
        if memory is None:
            state.decisions.set_blocked(now_ns, {"": WaitReason.EXECUTOR} if len(state.waiting) else {})
            return None
        # While there are suspects, steps are of them or of all others, one after the other: so nobody starves, and what
        # dies or fails says whose fault it was.
        in_flight_max = 1 if len(state.suspects) else state.settings.steps_in_flight
        if len(state.in_flight.steps) >= in_flight_max:
            return None
        self.due_ns = self._early(now_ns)
        if self.due_ns is not None:
            return None
        self._composer.prepare(now_ns)
        state.suspects.trial = not state.suspects.trial and len(state.suspects) > 0
        builder, unsent = self._composed(now_ns, memory)
        if not builder.slices and len(state.suspects):
            state.suspects.trial = not state.suspects.trial
            builder, more = self._composed(now_ns, memory)
            unsent = unsent or more
        state.decisions.set_blocked(now_ns, builder.record.blocked_classes)
        # An executor without work must still learn which slots are empty.
        if not builder.slices and (state.in_flight.steps or not unsent):
            return None
        return self._send(builder, memory)

    def _composed(self, now_ns: int, memory: CacheMemory) -> tuple[StepBuilder, bool]:
        """The next step, after others gave way where nobody could go on, and whether slots are to be released."""
        state = self._state
        unsent = state.slots.begin_plan()
        builder = self._compose(now_ns, memory)
        while not builder.slices and not state.in_flight.steps and builder.stalled:
            # Nothing in flight can free a block: somebody gives way now, unless all wait for the detokenizer.
            if not self._preemption.give_way(builder) and not self._preemption.gather(builder):
                break
            unsent = state.slots.begin_plan()
            builder = self._compose(now_ns, memory)
        return builder, unsent

    def _early(self, now_ns: int) -> int | None:
        """When to plan the next step (nanoseconds), if it is too early for that now; else None."""
        in_flight = self._state.in_flight
        free_ns = in_flight.free_ns if in_flight.steps and self._composer.patient else 0
        due_ns = free_ns - max(_LEAD_NS, int(_LEAD_PART * (free_ns - in_flight.busy_ns)))
        return due_ns if due_ns > now_ns else None

    def _compose(self, now_ns: int, memory: CacheMemory) -> StepBuilder:
        state = self._state
        cache_left = state.settings.max_cache_tokens or _UNLIMITED
        tokens_left = self._composer.tokens(min(self.tokens_max, self.token_limit), now_ns)
        budget = StepBudget(tokens_left, cache_left, tokens_max=tokens_left)
        builder = StepBuilder(state.in_flight.number + 1, now_ns, memory, budget)
        if state.suspects.trial:
            self._composer.compose_only(builder, state.suspects.group)
        else:
            self._composer.compose(builder)
        return builder

    def _send(self, builder: StepBuilder, memory: CacheMemory) -> StepPlan:
        state = self._state
        tokens = builder.budget.tokens_max - builder.budget.tokens_left - builder.budget.withheld
        cache_tokens = (state.settings.max_cache_tokens or _UNLIMITED) - builder.budget.cache_left
        self._record(builder, tokens, cache_tokens)
        predicted_us = self._times.predict_us(tokens, cache_tokens, len(builder.entries), builder.record.pairs)
        step = InFlightStep(builder.number, builder.entries, tokens, cache_tokens, builder.record.pairs, predicted_us)
        state.in_flight.send(step, builder.now_ns)
        if state.adopted:
            builder.adopt(state.adopted)
            state.adopted.clear()
        moves = memory.take_moves()
        plan = StepPlan(
            epoch=state.in_flight.epoch,
            number=builder.number,
            slices=tuple(builder.slices),
            fill=tuple(builder.fills),
            grow=tuple(builder.grows),
            release=state.slots.take_releases(),
            swap_out=moves.swap_out,
            copies=moves.copies,
            swap_in=moves.swap_in,
            replace=moves.replace,
            stash=moves.stash,
            predicted_us=predicted_us,
        )
        state.counters.recomputed_tokens += builder.record.recomputed
        state.counters.evictions += memory.cache.evictions()
        for request in builder.prefilled:
            self._lifecycle.decode(request)
        for request in builder.drained:
            self._lifecycle.drain(request, builder.now_ns)
        if builder.stalled:
            self._preemption.give_way(builder)
        return plan

    def _record(self, builder: StepBuilder, tokens: int, cache_tokens: int) -> None:
        """Keep what was decided."""
        state = self._state
        state.decisions.add(
            StepDecision(
                epoch=state.in_flight.epoch,
                number=builder.number,
                at_ns=builder.now_ns,
                tokens_max=builder.budget.tokens_max - builder.budget.withheld,
                tokens=tokens,
                cache_tokens=cache_tokens,
                decodes=builder.record.decodes,
                chunks=builder.chunks,
                admitted=tuple(each.stream for each in builder.fills),
                passed=tuple(builder.record.passed),
                running=state.running,
                waiting=len(state.waiting),
            )
        )
