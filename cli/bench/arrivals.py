"""Load patterns: a fixed number of requests in flight, Poisson arrivals, or a trace. The same seed gives the same times."""

import random
from collections.abc import Sequence

import msgspec

from noria.cli.bench.workload import BenchRequest


class ClosedLoop(msgspec.Struct, frozen=True, tag="closed"):
    """Sends a new request whenever one ends, so that `in_flight` requests are always open."""

    in_flight: int


class PoissonArrivals(msgspec.Struct, frozen=True, tag="poisson"):
    """Sends requests at random times, independently of answers, `requests_s` per second on average."""

    requests_s: float
    seed: int = 0


class TraceReplay(msgspec.Struct, frozen=True, tag="trace"):
    """Sends requests at the times of a trace; at a speed of 2, twice as fast."""

    speed: float = 1.0


LoadPattern = ClosedLoop | PoissonArrivals | TraceReplay


def send_times(load: PoissonArrivals | TraceReplay, requests: Sequence[BenchRequest]) -> list[float]:
    """Return when each request is sent, in seconds from the start."""
    if isinstance(load, TraceReplay):
        return [request.at_s / load.speed for request in requests]
    rng = random.Random(load.seed)
    times: list[float] = []
    for _ in requests:
        times.append((times[-1] if times else 0.0) + rng.expovariate(load.requests_s))
    return times


def describe_load(load: LoadPattern) -> str:
    """Return the load pattern in words, for the report's first line."""
    match load:
        case ClosedLoop():
            return f"{load.in_flight} in flight"
        case PoissonArrivals():
            return f"Poisson, {load.requests_s:g} requests/s"
        case TraceReplay():
            return f"trace, speed {load.speed:g}"
