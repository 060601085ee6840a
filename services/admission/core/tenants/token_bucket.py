"""A token bucket: a rate in the long run, a burst after a pause. Time arrives as an argument."""

import math

_MINUTE_NS = 60_000_000_000


class TokenBucket:
    """A bucket of tokens that starts full and refills at `per_minute`, up to `capacity`.

    What was taken beforehand for more than was used is given back; what was used beyond it is owed.
    """

    __slots__ = ("_filled_ns", "_level", "capacity", "per_minute")

    def __init__(self, per_minute: int, capacity: int, now_ns: int) -> None:
        self.per_minute = per_minute
        self.capacity = capacity
        self._level = float(capacity)
        self._filled_ns = now_ns

    def resize(self, per_minute: int, capacity: int, now_ns: int) -> None:
        """Change rate and burst; what has been used stays used."""
        if (per_minute, capacity) == (self.per_minute, self.capacity):
            return
        used = self.capacity - self.level(now_ns)
        self.per_minute, self.capacity = per_minute, capacity
        self._level = capacity - used

    def refill(self, level: float, since_ns: int) -> None:
        """Set the level as it was at `since_ns`, for a bucket taken over from the journal; it has refilled since then."""
        self._level = min(self.capacity, level)
        self._filled_ns = since_ns

    def level(self, now_ns: int) -> float:
        """The number of tokens in the bucket at `now_ns`; below zero when more were used than there were."""
        if now_ns > self._filled_ns:
            gained = (now_ns - self._filled_ns) * self.per_minute / _MINUTE_NS
            self._level = min(self.capacity, self._level + gained)
            self._filled_ns = now_ns
        return self._level

    def wait_ms(self, tokens: int, now_ns: int) -> int:
        """Milliseconds until the bucket has so many tokens, 0 if it has them. It never has more than its capacity."""
        missing = tokens - self.level(now_ns)
        return 0 if missing <= 0 else math.ceil(missing * 60_000 / self.per_minute)

    def take(self, tokens: int, now_ns: int) -> None:
        """Take tokens, whether or not they are there; a negative number gives back."""
        self._level = min(self.capacity, self.level(now_ns) - tokens)
