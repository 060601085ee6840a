"""How much more the scheduler will take: its last `Capacity` less what it had not yet counted then.

Every accepted stream is backed by credit, so that an accepted request is never refused later.
"""

from collections import deque
from typing import Final

from noria.proto.scheduling import Capacity, ClassCapacity

_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 60_000
_RETRY_MS_USUAL: Final = 1_000


class Credit:
    """Requests and prompt tokens that may still be submitted.

    Streams count from the moment their request is received (`reserved`), then while they wait to be sent (`queued`),
    then until a `Capacity` has counted them (`_transit`: their prompt tokens, in the order sent).
    """

    def __init__(self) -> None:
        self.capacity: Capacity | None = None
        self.reserved = 0
        self.queued = 0
        self.queued_tokens = 0
        self.sent = 0
        self._transit: deque[int] = deque()
        self._transit_tokens = 0

    @property
    def ready(self) -> bool:
        """Whether the scheduler takes work at all."""
        return self.capacity is not None and self.capacity.ready

    @property
    def largest_tokens(self) -> int:
        """The longest prompt and output together that the cache could ever hold."""
        return self.capacity.largest_tokens if self.capacity is not None else 0

    def reset(self) -> None:
        """The scheduler is gone or new: nothing is known of it, and it has counted nothing."""
        self.capacity = None
        self.queued = self.queued_tokens = self.sent = self._transit_tokens = 0
        self._transit.clear()

    def publish(self, capacity: Capacity) -> None:
        """The scheduler has said what it will take."""
        self.capacity = capacity
        while self._transit and self.sent - len(self._transit) < capacity.submitted:
            self._transit_tokens -= self._transit.popleft()

    def allows_requests(self, n: int, traffic_class: str) -> bool:
        """Whether `n` more streams may be reserved."""
        known = self._class(traffic_class)
        return known is not None and known.requests - len(self._transit) - self.queued - self.reserved >= n

    def allows_tokens(self, tokens: int, traffic_class: str) -> bool:
        """Whether so many more prompt tokens may be submitted."""
        known = self._class(traffic_class)
        return known is not None and known.tokens - self._transit_tokens - self.queued_tokens >= tokens

    def retry_after_ms(self, traffic_class: str) -> int:
        """When credit may be back: the predicted wait for a start, else a second."""
        known = self._class(traffic_class)
        predicted = known.start_ms if known is not None else 0.0
        return min(max(int(predicted or _RETRY_MS_USUAL), _RETRY_MS_MIN), _RETRY_MS_MAX)

    def queue(self, tokens: int) -> None:
        """A stream of so many prompt tokens waits to be sent."""
        self.queued += 1
        self.queued_tokens += tokens

    def unqueue(self, tokens: int) -> None:
        """It no longer waits."""
        self.queued -= 1
        self.queued_tokens -= tokens

    def send(self, tokens: int) -> None:
        """It was written to the scheduler."""
        self.unqueue(tokens)
        self.sent += 1
        self._transit.append(tokens)
        self._transit_tokens += tokens

    def unsend(self, tokens: int) -> None:
        """The stream sent last was not taken by the socket; it waits again."""
        assert self._transit.pop() == tokens
        self.sent -= 1
        self._transit_tokens -= tokens
        self.queue(tokens)

    def check(self) -> None:
        """Assert that the sums are sums."""
        assert self.reserved >= 0 and self.queued >= 0 and self.queued_tokens >= 0
        assert self._transit_tokens == sum(self._transit) and self.sent >= len(self._transit)

    def _class(self, name: str) -> ClassCapacity | None:
        if self.capacity is None or not self.capacity.classes:
            return None
        classes = self.capacity.classes
        return next((each for each in classes if each.traffic_class == name), classes[0])
