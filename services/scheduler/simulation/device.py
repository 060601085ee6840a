"""A device that takes as long as the step-time model says, and samples what each stream is known to generate."""

import random
from collections import deque
from collections.abc import Callable

from noria.proto.base import Stream
from noria.proto.execution import Sampled, StepDone, StepPlan
from noria.proto.scheduling import StepTime
from noria.services.scheduler.core.predict.step_time_model import predict_us

Token = Callable[[Stream, int], int]


class SimulatedDevice:
    """An executor that computes steps in order, in simulated time.

    token: the output id of a stream at a position. jitter: standard deviation of the logarithm of each step's time
    around the model's; the same seed and plans give the same times.
    """

    def __init__(self, step_time: StepTime, token: Token, *, jitter: float = 0.0, seed: int = 0) -> None:
        self._step_time = step_time
        self._token = token
        self._jitter = jitter
        self._draw = random.Random(seed)  # noqa: S311 - a simulated time is no secret
        self._queued: deque[tuple[int, int, StepPlan]] = deque()
        self._slots: dict[int, tuple[Stream, int, int]] = {}
        self._free_ns = 0
        self.busy_ns = 0
        self.steps = 0

    @property
    def next_ns(self) -> int | None:
        """When the oldest step is done; None without one."""
        return self._queued[0][0] if self._queued else None

    def send(self, plan: StepPlan, now_ns: int) -> None:
        """Queue a plan; it begins when the one before it is done."""
        if plan.number == 1:
            self._queued.clear()
            self._slots.clear()
        spent_us = self._spent_us(plan)
        begin_ns = max(now_ns, self._free_ns)
        self._free_ns = begin_ns + int(spent_us * 1000)
        self.busy_ns += self._free_ns - begin_ns
        self._queued.append((self._free_ns, int(spent_us), plan))

    def finish(self) -> StepDone:
        """The result of the oldest step."""
        _, spent_us, plan = self._queued.popleft()
        slots, token = self._slots, self._token
        for slot in plan.release:
            slots.pop(slot, None)
        for fill in plan.fill:
            slots[fill.slot] = (fill.stream, fill.attempt, len(fill.output_ids))
        sampled = []
        for each in plan.slices:
            if each.sample:
                stream, attempt, output = slots[each.slot]
                sampled.append(Sampled(stream, attempt, output, (token(stream, output),)))
                slots[each.slot] = (stream, attempt, output + 1)
        self.steps += 1
        return StepDone(plan.epoch, plan.number, tuple(sampled), max(1, spent_us))

    def _spent_us(self, plan: StepPlan) -> float:
        slices = plan.slices
        if not slices:
            return 0.0
        query = sum(each.length for each in slices)
        cache = sum(each.start + each.length for each in slices)
        chunks = (each for each in slices if each.length > 1)
        pairs = sum(each.length * (2 * each.start + each.length) // 2 for each in chunks)
        spent_us = predict_us(self._step_time, query, cache, len(slices), pairs)
        return spent_us * self._draw.lognormvariate(0.0, self._jitter) if self._jitter else spent_us
