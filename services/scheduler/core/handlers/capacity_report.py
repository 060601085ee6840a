"""What admission may count on: credit, the step-time model, and when a new request would start.

A start is predicted from the work that waits: where slots are what lacks, as the time until so many come free; where the token
budget is, at the rate at which such work was started lately. Each prediction is compared with what comes true, and the factor
by which it was off is published with it. Everything costs O(classes + running requests) a step, O(1) a waiting request.
"""

from typing import Final

from noria.proto.scheduling import Capacity, ClassCapacity
from noria.services.scheduler.core.predict.slot_forecast import SlotForecast
from noria.services.scheduler.core.predict.start_rate import StartRate
from noria.services.scheduler.core.predict.step_times import StepTimePredictor
from noria.services.scheduler.core.state.in_flight_steps import InFlightStep
from noria.services.scheduler.core.state.request import Request
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
from noria.services.scheduler.core.state.step_decisions import WaitReason

ALL: Final = ""
_STEPS_KEPT: Final = 1.0 - 1.0 / 64


class CapacityReport:
    """Counts submissions and predicts starts. submitted: submissions of admission's present life."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.submitted = 0
        self.times = StepTimePredictor()
        self._start_rates: dict[str, StartRate] = {ALL: StartRate()}
        self._last_plan_ns = 0
        self._waited: list[str] = []
        self._step_us = 0.0
        # While some waited: how long steps lasted, and how long they computed.
        self._lasted_ns = 0.0
        self._computed_ns = 0.0

    def done(self, step: InFlightStep, compute_us: int) -> None:
        """Learn from a step that took so long."""
        self.times.observe(step.tokens, step.cache_tokens, len(step.entries), compute_us, step.pairs)
        if self._waited:
            self._computed_ns += compute_us * 1000
        if step.tokens and compute_us:
            old = self._step_us
            self._step_us = old * _STEPS_KEPT + compute_us * (1.0 - _STEPS_KEPT) if old else float(compute_us)

    def received(self, requests: list[Request]) -> None:
        """Keep the wait that is predicted to each new request, to learn how far it is off."""
        classes = {each.traffic_class: each for each in self.capacity().classes}
        for request in requests:
            offered = classes.get(request.asked.submission.traffic_class, classes[ALL])
            request.progress.foreseen_ns = int(offered.start_ms * 1e6)

    def planned(self, now_ns: int, started: list[Request]) -> None:
        """Learn from a plan that started these requests, each for the first time."""
        spent_ns = now_ns - self._last_plan_ns
        for name in self._waited:
            self._start_rate(name).wait(spent_ns, by_slots=self._by_slots(name))
        if self._waited:
            self._lasted_ns = self._lasted_ns * _STEPS_KEPT + spent_ns
            self._computed_ns *= _STEPS_KEPT
        for request in started:
            for name in dict.fromkeys((ALL, request.asked.submission.traffic_class)):
                if name in self._waited:
                    self._start_rate(name).start(
                        request.asked.prompt_tokens, now_ns - request.asked.received_ns, request.progress.foreseen_ns
                    )
        self._last_plan_ns, self._waited = now_ns, self._state.waiting.busy()

    def capacity(self) -> Capacity:
        """The present credit and predictions, for all classes together ("") and for each class that was seen."""
        state = self._state
        settings, waiting, geometry, memory = state.settings, state.waiting, state.geometry, state.memory
        requests = max(0, settings.queue_requests_max - len(waiting))
        tokens = max(0, settings.queue_tokens_max - waiting.tokens)
        step = state.decisions.steps[-1] if state.decisions.steps else None
        prefill_tokens = max(1, step.tokens_max - step.decodes if step is not None else settings.max_batch_tokens)
        cache_tokens, running = (step.cache_tokens, step.running) if step is not None else (0, 0)
        prefill_us = self.times.predict_us(prefill_tokens + (step.decodes if step else 0), cache_tokens, running + 1)
        forecast = self._slot_forecast(cache_tokens)
        return Capacity(
            submitted=self.submitted,
            classes=tuple(
                self._offer(name, requests, tokens, prefill_us / prefill_tokens, forecast) for name in self._start_rates
            ),
            step_time=self.times.all.coefficients(),
            largest_tokens=memory.cache.largest_tokens if memory is not None else 0,
            ready=geometry is not None,
            step_ms=round(self._step_us / 1000, 3),
            prefill_tokens=prefill_tokens,
            prefill_step_ms=round(prefill_us / 1000, 3),
        )

    def _offer(self, name: str, requests: int, tokens: int, token_us: float, forecast: SlotForecast) -> ClassCapacity:
        """The credit of one class: its new request starts after those that wait before it."""
        own = name if self._by_class else ALL
        queue, rate, whole, held = (
            self._state.waiting.queue(own),
            self._start_rate(own),
            self._start_rate(ALL),
            self._by_slots(own),
        )
        by_slots = rate.by_slots if rate.spent_ns else float(held or not self._state.slots.free)
        token_ns = rate.token_ns if rate.requests else (1.0 - by_slots) * token_us * 1000
        # By its turn others have started, too. A slot that is free while slots are what lacks is kept for somebody else.
        free = 0 if held else self._state.slots.free
        starts = (queue.requests + 1 - free) * (rate.gap_ns / whole.gap_ns if rate.gap_ns and whole.gap_ns else 1.0)
        return ClassCapacity(
            name,
            requests,
            tokens,
            start_ms=round((by_slots * forecast.wait_ns(starts) + queue.tokens * token_ns) / 1e6, 2),
            request_ms=round(rate.request_ns / 1e6, 4),
            token_ms=round(token_ns / 1e6, 6),
            margin=round(rate.margin, 3),
        )

    def _slot_forecast(self, cache_tokens: int) -> SlotForecast:
        """The forecast of when slots come free."""
        state = self._state
        waiting, running = state.waiting.queue(ALL), (*state.decoding, *state.prefilling)
        begun = sum([request.work.filled - request.work.length for request in state.prefilling])
        # A step takes longer than it computes where others need the processor, too.
        us_ns = 1000 * max(1.0, self._lasted_ns / self._computed_ns if self._computed_ns else 1.0)
        token_ns = self.times.with_prompts().query_token_us * us_ns
        return SlotForecast(
            [request.progress.limit - request.work.outputs for request in running],
            state.end_rates,
            coming=state.slots.count - state.slots.free - len(running),
            step_ns=self.times.predict_us(len(running), cache_tokens, len(running)) * us_ns,
            prompt_ns=token_ns * waiting.tokens / waiting.requests if waiting.requests else 0.0,
            begun_ns=token_ns * begun,
        )

    @property
    def _by_class(self) -> bool:
        """Whether classes have queues of their own."""
        return self._state.policy.by_class

    def _start_rate(self, name: str) -> StartRate:
        rate = self._start_rates.get(name)
        if rate is None:
            rate = self._start_rates[name] = StartRate()
        return rate

    def _by_slots(self, name: str) -> bool:
        return self._state.decisions.reason(name) in (WaitReason.SLOTS, WaitReason.RESERVED)
