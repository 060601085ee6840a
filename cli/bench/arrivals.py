"""When requests are sent: so many in flight, at random moments, or as a trace says. The same seed gives the same moments."""

import random
from collections.abc import Sequence

import msgspec

from noria.cli.bench.workload import Job


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """A new request whenever one ends, so that `in_flight` are always open."""

    in_flight: int


class Poisson(msgspec.Struct, frozen=True, tag="poisson"):
    """Requests come independently of each other and of answers, `requests_s` per second on average."""

    requests_s: float
    seed: int = 0


class Replay(msgspec.Struct, frozen=True, tag="trace"):
    """Requests come when the trace says; at a speed of 2, twice as fast."""

    speed: float = 1.0


Load = Closed | Poisson | Replay


def moments(load: Poisson | Replay, jobs: Sequence[Job]) -> list[float]:
    """Seconds from the start at which each job is sent."""
    if isinstance(load, Replay):
        return [job.at_s / load.speed for job in jobs]
    chance = random.Random(load.seed)
    times: list[float] = []
    for _ in jobs:
        times.append((times[-1] if times else 0.0) + chance.expovariate(load.requests_s))
    return times


def described(load: Load) -> str:
    """The load in words."""
    match load:
        case Closed():
            return f"{load.in_flight} in flight"
        case Poisson():
            return f"Poisson, {load.requests_s:g} requests/s"
        case Replay():
            return f"trace, speed {load.speed:g}"
