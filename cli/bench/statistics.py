"""Statistics of a benchmark run: latency distributions, rates, and goodput (how many requests met an objective)."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from noria.cli.bench.request_timeline import BenchTimeline
from noria.shared.errors import UserError


class Distribution(msgspec.Struct, frozen=True):
    """Count, mean, percentiles and maximum of a set of durations, in milliseconds. All zero for an empty set."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class LatencyObjective(msgspec.Struct, frozen=True):
    """Latency limits in milliseconds that a request must meet to count towards goodput; None is no limit.

    itl_ms bounds a request's mean time between tokens, as other benchmarks' time per output token does.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None


class Goodput(msgspec.Struct, frozen=True, rename={"objective": "promise"}):
    """Requests that met a latency objective: their share of all requests, and their number per second."""

    objective: LatencyObjective
    share: float
    requests_s: float


class Summary(msgspec.Struct, frozen=True):
    """All statistics of one run.

    short: completed requests with fewer tokens than asked for. uncounted: completed requests whose target did not say
    how many tokens they have, so that pieces were counted. duration_s: from the first request to the last end.
    itl_ms is over all tokens of all requests; piece_ms over the pieces they came in. slip_ms: the client's own delay.
    """

    requests: int
    completed: int
    errors: dict[str, int]
    short: int
    uncounted: int
    duration_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_s: float
    total_tokens_s: float
    requests_s: float
    ttft_ms: Distribution
    itl_ms: Distribution
    piece_ms: Distribution
    e2e_ms: Distribution
    slip_ms: Distribution
    goodput: Goodput | None = None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the samples lie, between two samples in proportion. Raises ValueError for none."""
    if not ordered:
        raise ValueError("no samples")
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize_samples(seconds: Iterable[float]) -> Distribution:
    """Summarize samples in seconds."""
    ordered = sorted(each * 1000 for each in seconds)
    if not ordered:
        return Distribution()
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Distribution(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def parse_objective(text: str) -> LatencyObjective:
    """Read `ttft:500,itl:50,e2e:8000`, any of the three. Raises UserError."""
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition(":")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if name not in ("ttft", "itl", "e2e") or not value > 0:
            raise UserError(f"an objective is ttft:MS, itl:MS or e2e:MS, not {part!r}")
        values[name] = value
    return LatencyObjective(values.get("ttft"), values.get("itl"), values.get("e2e"))


def summarize(timelines: Sequence[BenchTimeline], objective: LatencyObjective | None = None) -> Summary:
    """Compute all statistics of one run."""
    done = [each for each in timelines if not each.error]
    began_s = min((each.begun_s for each in timelines), default=0.0)
    duration_s = max((each.ended_s for each in timelines), default=0.0) - began_s
    output = sum(each.output_tokens for each in done)
    total = output + sum(each.prompt_tokens for each in done)
    rate = 1 / duration_s if duration_s > 0 else 0.0
    answered = [each for each in done if each.arrivals]
    return Summary(
        requests=len(timelines),
        completed=len(done),
        errors=dict(Counter(each.error for each in timelines if each.error)),
        short=sum(each.output_tokens < each.requested_tokens for each in done),
        uncounted=sum(each.counted_tokens is None for each in done),
        duration_s=duration_s,
        prompt_tokens=total - output,
        cached_tokens=sum(each.cached_tokens for each in done),
        output_tokens=output,
        output_tokens_s=output * rate,
        total_tokens_s=total * rate,
        requests_s=len(done) * rate,
        ttft_ms=summarize_samples(each.ttft_s for each in answered),
        itl_ms=summarize_samples(gap for each in answered for gap in each.token_gaps_s()),
        piece_ms=summarize_samples(
            later - earlier
            for each in answered
            for earlier, later in zip(each.arrivals, each.arrivals[1:], strict=False)
        ),
        e2e_ms=summarize_samples(each.e2e_s for each in done),
        slip_ms=summarize_samples(each.slip_s for each in timelines),
        goodput=None if objective is None else _goodput(timelines, objective, rate),
    )


def _goodput(timelines: Sequence[BenchTimeline], objective: LatencyObjective, rate: float) -> Goodput:
    good = sum(_meets(each, objective) for each in timelines)
    return Goodput(objective, good / max(1, len(timelines)), good * rate)


def _meets(each: BenchTimeline, objective: LatencyObjective) -> bool:
    if each.error or not each.arrivals:
        return False
    mean_gap_s = (each.arrivals[-1] - each.arrivals[0]) / max(1, each.output_tokens - 1)
    limits = (
        (each.ttft_s, objective.ttft_ms),
        (mean_gap_s, objective.itl_ms),
        (each.e2e_s, objective.e2e_ms),
    )
    return all(limit is None or value_s * 1000 <= limit for value_s, limit in limits)
