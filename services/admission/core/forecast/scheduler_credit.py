"""Counts how many more streams and prompt tokens the scheduler will accept: its last `Capacity` minus what it has not counted yet.

Every accepted stream is backed by credit, so that an accepted request is never refused later. Each class has credit of its
own; an entry without a name, if there is one, is what all share.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from noria.proto.scheduling import Capacity, ClassCapacity

_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 60_000
_RETRY_MS_USUAL: Final = 1_000
_SHARED: Final = ""


@dataclass(slots=True)
class UncountedWork:
    """Streams and prompt tokens that the scheduler has not counted yet; `reserved` of the streams have no prompt yet."""

    requests: int = 0
    tokens: int = 0
    reserved: int = 0


class SchedulerCredit:
    """Requests and prompt tokens that may still be submitted.

    Streams count from the moment their request is received (`reserved`), then while they wait to be sent (`queued`),
    then until a `Capacity` has counted them (in transit: class and prompt tokens, in the order sent). What was shed to
    make room counts as free until the scheduler has counted everything sent.
    """

    def __init__(self) -> None:
        self.capacity: Capacity | None = None
        self.reserved = 0
        self.queued = 0
        self.sent = 0
        self._transit: deque[tuple[str, int]] = deque()
        self._pending: dict[str, UncountedWork] = {}
        self._freed = UncountedWork()

    @property
    def ready(self) -> bool:
        """Whether the scheduler takes work at all."""
        return self.capacity is not None and self.capacity.ready

    @property
    def largest_tokens(self) -> int:
        """The longest prompt and output together that the cache could ever hold."""
        return self.capacity.largest_tokens if self.capacity is not None else 0

    def reset(self) -> None:
        """Forget the capacity and everything sent: the scheduler has died or is new."""
        for traffic_class, tokens in self._transit:
            self._count(traffic_class, -1, -tokens)
        self.capacity = None
        self.sent = 0
        self._transit.clear()
        self._freed = UncountedWork()

    def update(self, capacity: Capacity) -> None:
        """Take a new `Capacity`, and drop what it has counted from the work in transit."""
        self.capacity = capacity
        while self._transit and self.sent - len(self._transit) < capacity.submitted:
            traffic_class, tokens = self._transit.popleft()
            self._count(traffic_class, -1, -tokens)
        if not self._transit:
            self._freed = UncountedWork()

    def shortfall(self, requests: int, tokens: int, traffic_class: str) -> UncountedWork | None:
        """How many more streams and prompt tokens of credit are missing to submit these; None if there is enough credit.

        Streams that are reserved already are asked for as 0.
        """
        if self.capacity is None:
            return UncountedWork(requests, tokens)
        named = {each.traffic_class: each for each in self.capacity.classes}
        own, shared = named.get(traffic_class), named.get(_SHARED)
        bounds: list[tuple[ClassCapacity, UncountedWork]] = []
        if own is not None:
            bounds.append((own, self._pending.get(traffic_class, UncountedWork())))
        every = shared or (self.capacity.classes[0] if own is None and self.capacity.classes else None)
        if every is not None:
            bounds.append((every, self._all()))
        if not bounds:
            return UncountedWork(requests, tokens)
        missing = UncountedWork(
            max(requests + pending.requests - bound.requests - self._freed.requests for bound, pending in bounds),
            max(tokens + pending.tokens - bound.tokens - self._freed.tokens for bound, pending in bounds),
        )
        return missing if missing.requests > 0 or missing.tokens > 0 else None

    def uncounted(self, traffic_class: str) -> UncountedWork:
        """Accepted streams and prompt tokens of a class that the scheduler has not counted yet."""
        pending = self._pending.get(traffic_class, UncountedWork())
        return UncountedWork(pending.requests - pending.reserved, pending.tokens)

    def start_ms(self, traffic_class: str) -> float:
        """The predicted wait of the next request of a class."""
        classes = self.capacity.classes if self.capacity is not None else ()
        known = next((each for each in classes if each.traffic_class == traffic_class), classes[0] if classes else None)
        return known.start_ms if known is not None else 0.0

    def retry_after_ms(self, traffic_class: str) -> int:
        """When credit may be back: the predicted wait for a start, else a second."""
        return min(max(int(self.start_ms(traffic_class) or _RETRY_MS_USUAL), _RETRY_MS_MIN), _RETRY_MS_MAX)

    def count_shed(self, tokens: int) -> None:
        """A stream of so many prompt tokens was shed, which the scheduler will count later."""
        self._freed.requests += 1
        self._freed.tokens += tokens

    def reserve(self, requests: int, traffic_class: str) -> None:
        """Streams are about to be submitted, their prompts not known yet; a negative number gives back."""
        self.reserved += requests
        self._count(traffic_class, requests, 0)
        self._pending[traffic_class].reserved += requests

    def queue(self, tokens: int, traffic_class: str) -> None:
        """A stream of so many prompt tokens waits to be sent."""
        self.queued += 1
        self._count(traffic_class, 1, tokens)

    def unqueue(self, tokens: int, traffic_class: str) -> None:
        """Remove a stream that will not be sent from those that wait to be sent."""
        self.queued -= 1
        self._count(traffic_class, -1, -tokens)

    def send(self, tokens: int, traffic_class: str) -> None:
        """Move a waiting stream to those sent to the scheduler and not counted yet."""
        self.queued -= 1
        self.sent += 1
        self._transit.append((traffic_class, tokens))

    def unsend(self, tokens: int, traffic_class: str) -> None:
        """The stream sent last was not taken by the socket; it waits again."""
        assert self._transit.pop() == (traffic_class, tokens)
        self.sent -= 1
        self.queued += 1

    def check(self) -> None:
        """Assert that the counts of all classes add up to the totals."""
        assert self.reserved >= 0 and self.queued >= 0 and self.sent >= len(self._transit)
        assert all(each.requests >= 0 and each.tokens >= 0 for each in self._pending.values())
        assert self._all().requests == self.reserved + self.queued + len(self._transit)

    def _all(self) -> UncountedWork:
        return UncountedWork(
            sum(each.requests for each in self._pending.values()), sum(each.tokens for each in self._pending.values())
        )

    def _count(self, traffic_class: str, requests: int, tokens: int) -> None:
        pending = self._pending.setdefault(traffic_class, UncountedWork())
        pending.requests += requests
        pending.tokens += tokens
