"""A flood of long prompts beside people who wait: what the built-in classes make of it on a simulated device."""

import random
from dataclasses import replace

import pytest

from noria.proto.execution import Geometry, Group
from noria.proto.scheduling import StepTime
from noria.services.scheduler.config import scheduler_settings
from noria.services.scheduler.simulation.device import SimulatedDevice
from noria.services.scheduler.simulation.jobs import SimulatedRequest, simulated_request
from noria.services.scheduler.simulation.report import quantile
from noria.services.scheduler.simulation.runner import Simulation
from noria.shared.config.config import Config

# A model of 135 million parameters in bfloat16 on two cores, as measured.
DEVICE = StepTime(base_us=9400, query_token_us=620, cache_token_us=1.8, request_us=50, pair_us=0.26)
GEOMETRY = Geometry("", (Group(0, 1),), 8192, 2, 16, 64, 512, 1 << 17, 50_000, "", "")
WARM_S, SECONDS = 10, 40


class Run:
    """Three short requests a second for a while, with or without as many long prompts as can be computed beside them."""

    def __init__(self, policy: str, *, flooded: bool, slower: float = 1.0) -> None:
        fit = StepTime(*(each * slower for each in (9400, 620, 1.8, 50, 0.26)))
        settings = replace(scheduler_settings(Config()), policy=policy)
        simulation = Simulation(
            settings,
            GEOMETRY,
            lambda token: SimulatedDevice(fit, token, jitter=0.05, seed=1),
            jobs(slower, flooded=flooded),
        )
        counters = simulation.core.state.counters
        simulation.run(int(WARM_S * slower * 1e9))
        before = counters.tokens - counters.wasted_tokens
        simulation.run(int((WARM_S + SECONDS) * slower * 1e9))
        self.tokens = counters.tokens - counters.wasted_tokens - before
        simulation.run(int((WARM_S + SECONDS + 60) * slower * 1e9))
        seen = [each for each in simulation.outcomes if each.job.submission.traffic_class == "interactive"]
        seen = [each for each in seen if each.job.at_ns >= WARM_S * slower * 1e9]
        self.ttft_ms = quantile([each.ttft_ms or 1e9 for each in seen], 0.99)
        self.itl_ms = quantile([gap / 1e6 for each in seen for gap in each.gaps_ns], 0.99)


def jobs(slower: float, *, flooded: bool) -> list[SimulatedRequest]:
    """Arrivals by one seed. Eight long prompts come at once, and another every few seconds."""
    draw, at_s, made = random.Random(1), 0.0, []
    while (at_s := at_s + draw.expovariate(3.0)) < WARM_S + SECONDS:
        made.append(
            simulated_request(
                len(made), int(at_s * slower * 1e9), 100, 32, traffic_class="interactive", tenant="people"
            )
        )
    for number in range(20 * flooded):
        at_s = max(0.0, number - 7) * 4.0
        made.append(
            simulated_request(
                1000 + number, int(at_s * slower * 1e9), 4000, 16, traffic_class="batch", tenant="crawler"
            )
        )
    return made


def test_people_keep_their_latencies_beside_a_flood_and_the_device_its_throughput() -> None:
    alone, beside, fifo = Run("fair", flooded=False), Run("fair", flooded=True), Run("fifo", flooded=True)
    assert beside.ttft_ms <= 2 * alone.ttft_ms
    assert beside.itl_ms <= 1.5 * alone.itl_ms
    assert beside.tokens >= 0.95 * fifo.tokens
    # By age, the same requests wait for the whole flood before them.
    assert fifo.ttft_ms > 20 * alone.ttft_ms
    assert fifo.itl_ms > 5 * alone.itl_ms


@pytest.mark.parametrize("slower", [12.0])
def test_a_device_that_cannot_keep_the_built_in_target_still_computes_prompts(slower: float) -> None:
    beside, fifo = Run("fair", flooded=True, slower=slower), Run("fifo", flooded=True, slower=slower)
    assert beside.tokens >= 0.6 * fifo.tokens
    assert beside.itl_ms < 0.6 * fifo.itl_ms
