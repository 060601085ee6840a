"""Figures from what was observed: distributions, rates, and how many requests kept what was promised."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from noria.cli.bench.request_timeline import Observed
from noria.shared.errors import UserError


class Distribution(msgspec.Struct, frozen=True):
    """Of a number of samples; milliseconds throughout. All zero when there are none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Promise(msgspec.Struct, frozen=True):
    """What makes a request a good one, in milliseconds; None demands nothing.

    itl_ms bounds a request's mean time between tokens, as other benchmarks' time per output token does.
    """

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None


class Goodput(msgspec.Struct, frozen=True):
    """Requests that kept the promise: their share of all, and how many a second."""

    promise: Promise
    share: float
    requests_s: float


class Summary(msgspec.Struct, frozen=True):
    """All figures of one run.

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
    """The value below which `share` of the samples lie, between two samples in proportion. Raises ValueError for none."""
    if not ordered:
        raise ValueError("no samples")
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(seconds: Iterable[float]) -> Distribution:
    """Summarize samples in seconds."""
    ordered = sorted(each * 1000 for each in seconds)
    if not ordered:
        return Distribution()
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Distribution(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def parse_promise(text: str) -> Promise:
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
    return Promise(values.get("ttft"), values.get("itl"), values.get("e2e"))


def summary(observed: Sequence[Observed], promise: Promise | None = None) -> Summary:
    """All figures of one run."""
    done = [each for each in observed if not each.error]
    began_s = min((each.begun_s for each in observed), default=0.0)
    duration_s = max((each.ended_s for each in observed), default=0.0) - began_s
    output = sum(each.output_tokens for each in done)
    total = output + sum(each.prompt_tokens for each in done)
    rate = 1 / duration_s if duration_s > 0 else 0.0
    answered = [each for each in done if each.arrivals]
    return Summary(
        requests=len(observed),
        completed=len(done),
        errors=dict(Counter(each.error for each in observed if each.error)),
        short=sum(each.output_tokens < each.wanted_tokens for each in done),
        uncounted=sum(each.counted_tokens is None for each in done),
        duration_s=duration_s,
        prompt_tokens=total - output,
        cached_tokens=sum(each.cached_tokens for each in done),
        output_tokens=output,
        output_tokens_s=output * rate,
        total_tokens_s=total * rate,
        requests_s=len(done) * rate,
        ttft_ms=distribution(each.first_s for each in answered),
        itl_ms=distribution(gap for each in answered for gap in each.gaps()),
        piece_ms=distribution(
            later - earlier
            for each in answered
            for earlier, later in zip(each.arrivals, each.arrivals[1:], strict=False)
        ),
        e2e_ms=distribution(each.whole_s for each in done),
        slip_ms=distribution(each.slip_s for each in observed),
        goodput=None if promise is None else _goodput(observed, promise, rate),
    )


def _goodput(observed: Sequence[Observed], promise: Promise, rate: float) -> Goodput:
    good = sum(_kept(each, promise) for each in observed)
    return Goodput(promise, good / max(1, len(observed)), good * rate)


def _kept(each: Observed, promise: Promise) -> bool:
    if each.error or not each.arrivals:
        return False
    mean_gap_s = (each.arrivals[-1] - each.arrivals[0]) / max(1, each.output_tokens - 1)
    wanted = (
        (each.first_s, promise.ttft_ms),
        (mean_gap_s, promise.itl_ms),
        (each.whole_s, promise.e2e_ms),
    )
    return all(limit is None or value_s * 1000 <= limit for value_s, limit in wanted)
