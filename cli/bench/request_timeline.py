"""What was seen of one request, written down while it runs."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Observed:
    """Times are seconds of a monotonic clock.

    begun_s: when it was sent or, where the load fixes that moment, when it should have been: waiting in the client counts.
    slip_s: how much later than it should have been it was sent.
    arrivals: of every piece that brought output. output_tokens: what the target counted, or None where it does not say.
    """

    index: int
    wanted_tokens: int
    begun_s: float = 0.0
    slip_s: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    counted_tokens: int | None = None
    finish: str = ""
    error: str = ""

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer; where the target did not count them, one for each piece."""
        return len(self.arrivals) if self.counted_tokens is None else self.counted_tokens

    @property
    def first_s(self) -> float:
        """Time to the first token."""
        return self.arrivals[0] - self.begun_s

    @property
    def whole_s(self) -> float:
        """Time to the end of the answer."""
        return self.ended_s - self.begun_s

    def gaps(self) -> list[float]:
        """Seconds between successive tokens, one fewer than there are tokens.

        Tokens that one piece brought came together: 0 between them. So it does not matter which piece brought how many.
        """
        between = [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]
        return between + [0.0] * max(0, self.output_tokens - 1 - len(between))
