"""Steps that were sent to the executor and are not done, and the blocks that wait for one of them to end."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from noria.services.scheduler.core.cache.request_blocks import RequestBlocks
from noria.services.scheduler.core.state.request import Request


class InFlightSlice(NamedTuple):
    """One request's part of a step: `tokens` query tokens up to position `end`, whose cache is in `blocks`.

    output: the output position that it samples, or -1.
    """

    request: Request
    output: int
    tokens: int
    end: int
    blocks: RequestBlocks


class RetiredBlocks(NamedTuple):
    """Block tables that a request no longer holds but a step in flight still touches."""

    request: Request
    blocks: RequestBlocks


@dataclass(slots=True, eq=False)
class InFlightStep:
    """One step in flight. cache_tokens: positions read, its own included. pairs: of tokens of chunks and positions they read.

    predicted_us: how long it was believed to take when it was planned, 0 where nobody knows.
    retired, spare: block tables, and pages that published ones replaced, to free when it is done. gain: units that this
    will make available.
    """

    number: int
    entries: list[InFlightSlice]
    tokens: int
    cache_tokens: int
    pairs: int = 0
    predicted_us: float = 0.0
    retired: list[RetiredBlocks] = field(default_factory=list)
    spare: list[tuple[int, ...]] = field(default_factory=list)
    gain: int = 0


class InFlightSteps:
    """The executor's queue as the scheduler believes it to be: epoch, last number and steps in flight, oldest first.

    busy_ns: since when it computes the oldest of them. done: how many steps were done since the start. freeing_units: what the
    ends of the steps in flight will make available.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.number = 0
        self.steps: deque[InFlightStep] = deque()
        self.freeing_units = 0
        self.done = 0
        self.busy_ns = 0

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps in flight, oldest first."""
        return [step.number for step in self.steps]

    @property
    def next_ns(self) -> int:
        """When the oldest step in flight is believed to be over; 0 without one, and where nobody knows."""
        first_us = self.steps[0].predicted_us if self.steps else 0.0
        return self.busy_ns + int(1000 * first_us) if first_us else 0

    @property
    def free_ns(self) -> int:
        """When the steps in flight are believed to be over; 0 where nobody knows."""
        if not all(step.predicted_us for step in self.steps):
            return 0
        return self.busy_ns + int(1000 * sum(step.predicted_us for step in self.steps))

    def send(self, step: InFlightStep, now_ns: int) -> None:
        """Note that the plan with the next number was sent."""
        assert step.number == self.number + 1
        if not self.steps:
            self.busy_ns = now_ns
        self.number = step.number
        self.steps.append(step)

    def retire(self, request: Request, blocks: RequestBlocks, gain: int) -> None:
        """Keep what a request held until the last step that touches it is done."""
        step = self._step(request.work.last_step)
        step.retired.append(RetiredBlocks(request, blocks))
        step.gain += gain
        self.freeing_units += gain

    def spare(self, number: int, pages: list[tuple[int, ...]], page_units: int) -> None:
        """Keep pages that nobody owns until the step is done that reads them last."""
        step = self._step(number)
        step.spare += pages
        step.gain += len(pages) * page_units
        self.freeing_units += len(pages) * page_units

    def finish(self, now_ns: int) -> InFlightStep:
        """Take out the oldest step, which is done; what it retired is the caller's to free."""
        self.busy_ns = now_ns
        step = self.steps.popleft()
        self.done += 1
        self.freeing_units -= step.gain
        return step

    def reopen(self) -> list[InFlightStep]:
        """Begin a new epoch; returns the steps of the old one, none of which will have a result."""
        lost = list(self.steps)
        self.steps.clear()
        self.freeing_units = 0
        self.epoch += 1
        self.number = 0
        return lost

    def skip(self, epoch: int) -> None:
        """Begin after an epoch that the executor has been in under an earlier scheduler; the present one is still unused."""
        assert not self.steps and not self.number
        self.epoch = max(self.epoch, epoch + 1)

    def _step(self, number: int) -> InFlightStep:
        step = self.steps[number - self.steps[0].number]
        assert step.number == number
        return step
