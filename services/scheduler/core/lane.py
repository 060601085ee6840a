"""Steps in flight, in order, and the blocks that wait for one of them to end."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from noria.services.scheduler.core.cache import Tables
from noria.services.scheduler.core.request import Request


class Entry(NamedTuple):
    """A slice in flight: `tokens` query tokens of a request; `output` is the output position it samples, or -1."""

    request: Request
    output: int
    tokens: int


class Retired(NamedTuple):
    """Blocks that a request no longer owns but a step in flight still touches."""

    request: Request
    tables: Tables


@dataclass(slots=True, eq=False)
class Step:
    """One step in flight. cache_tokens: positions read, its own included. retired: blocks to free when it is done."""

    number: int
    entries: list[Entry]
    tokens: int
    cache_tokens: int
    retired: list[Retired] = field(default_factory=list)


class Lane:
    """The executor's in-order lane as the scheduler believes it to be: epoch, last number and steps in flight."""

    def __init__(self) -> None:
        self.epoch = 0
        self.number = 0
        self.steps: deque[Step] = deque()
        self.soon_free = 0
        self.done = 0

    @property
    def numbers(self) -> list[int]:
        """The numbers of the steps in flight, oldest first."""
        return [step.number for step in self.steps]

    def send(self, step: Step) -> None:
        """A plan with the next number was sent."""
        assert step.number == self.number + 1
        self.number = step.number
        self.steps.append(step)

    def retire(self, request: Request, tables: Tables) -> None:
        """Keep a request's blocks until the last step that touches them is done."""
        step = self.steps[request.last_step - self.steps[0].number]
        assert step.number == request.last_step
        step.retired.append(Retired(request, tables))
        self.soon_free += sum(map(len, tables))

    def finish(self) -> Step:
        """The oldest step in flight is done; its retired blocks are the caller's to free."""
        step = self.steps.popleft()
        self.done += 1
        self.soon_free -= sum(len(table) for each in step.retired for table in each.tables)
        return step

    def reopen(self) -> list[Step]:
        """Begin a new epoch; returns the steps of the old one, none of which will be heard of again."""
        lost = list(self.steps)
        self.steps.clear()
        self.soon_free = 0
        self.epoch += 1
        self.number = 0
        return lost
