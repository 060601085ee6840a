"""Are refusals honest? A seeded overload with deadlines through admission's prediction, the core and a simulated device.

Run: python benchmarks/deadlines.py [--requests N] [--seed N ...] [--refused N] [--policy NAME ...]

Requests come at OVERLOAD times what the device can do, lengths and deadlines spread over more than an order of magnitude;
half name a time to the first token, half one to the end. Three figures come out:

- of those that were admitted, how many met their deadline;
- of N refused ones, drawn by the seed and each forced in alone while everybody else is treated as before, how many would
  have missed theirs;
- how many met it in all, against the best static threshold: admit while less than X prompt tokens wait, for the best X.
"""

import argparse
import gc
import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from noria.proto.execution import Geometry, Group
from noria.proto.scheduling import Capacity, StepTime
from noria.services.admission.core.forecast.request_forecast import QueueAhead, missed_deadline, predict
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.simulation.device import SimulatedDevice
from noria.services.scheduler.simulation.jobs import SimulatedOutcome, SimulatedRequest, simulated_request
from noria.services.scheduler.simulation.runner import ArrivalGate, Simulation

DEVICE: Final = StepTime(base_us=8000, query_token_us=20, cache_token_us=0.02, request_us=30)
JITTER: Final = 0.05
PER_SECOND: Final = 19.0  # what this device ends of these requests, measured with all of them waiting
OVERLOAD: Final = 1.5
SETTINGS: Final = CoreSettings(max_batch_tokens=2048, max_requests_per_batch=64, queue_requests_max=1 << 30)
GEOMETRY: Final = Geometry("", (Group(0, 1),), 40_000, 2, 16, 64, 2048, 1 << 20, 50_000, "", "")
_IN_TIME, _LATE = 10, 11  # how a child ends
THRESHOLDS: Final = (2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)


class Figures(NamedTuple):
    """The three results of one workload, and how many requests were admitted and refused."""

    admitted: int
    refused: int
    admitted_met: float
    refused_missed: float
    goodput: float
    best_static: float
    best_threshold: int


def workload(requests: int, seed: int) -> list[SimulatedRequest]:
    """Draw the requests of the overload."""
    draw, at_ns, jobs = random.Random(seed), 0, []
    for number in range(requests):
        at_ns += int(draw.expovariate(PER_SECOND * OVERLOAD) * 1e9)
        prompt = min(8000, max(8, int(draw.lognormvariate(6.2, 1.0))))
        output = min(1000, max(2, int(draw.lognormvariate(4.8, 0.8))))
        ttl_ms = int(math.exp(draw.uniform(math.log(300), math.log(20_000))))
        whole = number % 2 == 0
        jobs.append(
            simulated_request(
                number,
                at_ns,
                prompt,
                output,
                traffic_class="standard",
                ttl_first_ms=None if whole else ttl_ms,
                ttl_ms=ttl_ms + 40 * output if whole else None,
            )
        )
    return jobs


def honest(each: SimulatedRequest, capacity: Capacity, now_ns: int) -> bool:
    """Return whether admission's own prediction accepts a request."""
    del now_ns
    asked = each.submission
    forecast = predict(capacity, asked.traffic_class, QueueAhead(), len(asked.prompt_ids), each.output_tokens)
    return missed_deadline(forecast, asked.ttl_first_ms, asked.ttl_ms) is None


def met(outcome: SimulatedOutcome) -> bool:
    """Return whether a request was served within its deadlines."""
    asked, ttft_ms, total_ms = outcome.job.submission, outcome.ttft_ms, outcome.total_ms
    if not outcome.served or ttft_ms is None or total_ms is None:
        return False
    return (asked.ttl_first_ms is None or ttft_ms <= asked.ttl_first_ms) and (
        asked.ttl_ms is None or total_ms <= asked.ttl_ms
    )


def simulation(policy: str, jobs: list[SimulatedRequest], gate: ArrivalGate) -> Simulation:
    """Return a simulation on the same device, whose jitter depends on the step number only."""
    settings = replace(SETTINGS, policy=policy)
    return Simulation(
        settings, GEOMETRY, lambda token: SimulatedDevice(DEVICE, token, jitter=JITTER, seed=1), jobs, gate=gate
    )


class Forced:
    """Child processes, each with one refused request that is admitted anyway; as many at a time as there are processors."""

    def __init__(self) -> None:
        self._running: dict[int, None] = {}
        self.late = 0

    def fork(self) -> bool:
        """Fork; returns whether this is the child."""
        if len(self._running) >= (os.cpu_count() or 1):
            self._wait()
        child = os.fork()
        if child:
            self._running[child] = None
        return not child

    def finish(self) -> int:
        """Wait for all children; returns how many requests were late."""
        while self._running:
            self._wait()
        return self.late

    def _wait(self) -> None:
        oldest = next(iter(self._running))
        verdict = os.waitstatus_to_exitcode(os.waitpid(oldest, 0)[1])
        assert verdict in (_IN_TIME, _LATE), "a child ends with its verdict"
        del self._running[oldest]
        self.late += verdict == _LATE


def missed(policy: str, jobs: list[SimulatedRequest], admitted: set[int], drawn: set[int]) -> int:
    """Return how many of some refused requests miss their deadline when each is admitted alone; requests are by number.

    The run is repeated; where one of them arrives, a child of this process admits it and goes on until it has ended, with
    everybody else admitted or refused as before.
    """
    forced: list[SimulatedRequest] = []
    children = Forced()

    def gate(each: SimulatedRequest, capacity: Capacity, now_ns: int) -> bool:
        del capacity, now_ns
        number = each.submission.stream.request
        if forced or number not in drawn:
            return number in admitted
        if children.fork():
            forced.append(each)
            return True
        return False

    gc.freeze()  # a child that collects what its parent holds would copy it all
    whole = simulation(policy, jobs, gate)
    until_ns = 0
    while whole.busy:
        until_ns += 1_000_000_000
        whole.run(until_ns)
        if forced:
            outcome = next(each for each in whole.outcomes if each.job is forced[0])
            if outcome.end is not None:
                os._exit(_IN_TIME if met(outcome) else _LATE)
    assert not forced, "a request that was forced in ends"
    gc.unfreeze()
    return children.finish()


def static(policy: str, jobs: list[SimulatedRequest], threshold: int) -> int:
    """Return how many requests meet their deadline if requests are admitted below so many waiting prompt tokens."""
    whole: Simulation | None = None

    def below(each: SimulatedRequest, capacity: Capacity, now_ns: int) -> bool:
        del each, capacity, now_ns
        return whole is None or whole.core.state.waiting.tokens < threshold

    whole = simulation(policy, jobs, below)
    return sum(map(met, whole.run()))


def measure(requests: int, seed: int, forced_in: int, policy: str, thresholds: Sequence[int] = THRESHOLDS) -> Figures:
    """Measure all results of one workload."""
    jobs = workload(requests, seed)
    outcomes = simulation(policy, jobs, honest).run()
    admitted = [each for each in outcomes if not each.refused]
    refused = [each.job.submission.stream.request for each in outcomes if each.refused]
    drawn = random.Random(seed).sample(refused, min(forced_in, len(refused)))
    late = missed(policy, jobs, {each.job.submission.stream.request for each in admitted}, set(drawn))
    best, threshold = max((static(policy, jobs, threshold), threshold) for threshold in thresholds)
    good = sum(map(met, admitted))
    return Figures(
        admitted=len(admitted),
        refused=len(refused),
        admitted_met=good / max(1, len(admitted)),
        refused_missed=late / max(1, len(drawn)),
        goodput=good / requests,
        best_static=best / requests,
        best_threshold=threshold,
    )


def show(figures: Figures, policy: str, seed: int, seconds: float) -> None:
    """Print a row of the table."""
    ratio = figures.goodput / figures.best_static if figures.best_static else 1.0
    print(
        f"| {policy} | {seed} | {figures.admitted} | {figures.refused} | {figures.admitted_met:.1%} "
        f"| {figures.refused_missed:.1%} | {figures.goodput:.1%} | {figures.best_static:.1%} ({figures.best_threshold}) "
        f"| {ratio:.1%} | {seconds:.0f} s |",
        flush=True,
    )


def main() -> None:
    """Print a row for each policy and seed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--refused", type=int, default=200)
    parser.add_argument("--policy", nargs="+", default=["fifo", "fair"])
    chosen = parser.parse_args()
    print("| policy | seed | admitted | refused | met | would have missed | goodput | best static | ratio | took |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for policy in chosen.policy:
        for seed in chosen.seed:
            began = time.perf_counter()
            figures = measure(chosen.requests, seed, chosen.refused, policy)
            show(figures, policy, seed, time.perf_counter() - began)


if __name__ == "__main__":
    main()
