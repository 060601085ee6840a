"""Times and token counts of one benchmark request, recorded by the client while the request runs."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class BenchTimeline:
    """Records when a request was sent, when each piece of its answer came, and how it ended.

    Times are seconds of a monotonic clock.

    begun_s: when it was sent or, where the load fixes that moment, when it should have been: waiting in the client counts.
    slip_s: how much later than it should have been it was sent.
    arrivals: when each piece that brought output came. requested_tokens: the answer's length that was asked for.
    counted_tokens: the answer's length as the target reports it, or None where it does not.
    """

    index: int
    requested_tokens: int
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
        """Tokens of the answer; where the target does not report them, one for each piece."""
        return len(self.arrivals) if self.counted_tokens is None else self.counted_tokens

    @property
    def ttft_s(self) -> float:
        """Time to first token, in seconds."""
        return self.arrivals[0] - self.begun_s

    @property
    def e2e_s(self) -> float:
        """End-to-end latency, in seconds."""
        return self.ended_s - self.begun_s

    def token_gaps_s(self) -> list[float]:
        """Return the inter-token latencies in seconds, one fewer than there are tokens.

        Tokens of one piece came together, 0 apart. So it does not matter which piece brought how many.
        """
        between = [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]
        return between + [0.0] * max(0, self.output_tokens - 1 - len(between))
