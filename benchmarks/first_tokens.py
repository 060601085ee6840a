"""First tokens at an even load, by the scheduler alone: `python benchmarks/first_tokens.py --workload FILE [OPTIONS]`.

The real core runs on simulated time, with steps that take what the options say: so that two ways to plan can be compared
without the moods of a machine, which change first tokens more than planning does. Prompts and outputs are as long as
those of a workload file, which arrive in a Poisson process. Prints milliseconds.
"""

import argparse
import itertools
import json
import random
import statistics
from pathlib import Path

from noria.proto.execution import Geometry, Group
from noria.proto.scheduling import StepTime
from noria.services.executor.runner.calibration import DECODES
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.simulation.device import SimulatedDevice
from noria.services.scheduler.simulation.jobs import SimulatedOutcome, SimulatedRequest, simulated_request
from noria.services.scheduler.simulation.runner import Simulation
from noria.shared.config.config import ModelSettings
from noria.shared.model.model_folder import resolve_model_folder
from noria.shared.model.tokenizer import Tokenizer


def lengths(workload: Path, model: str) -> list[tuple[int, int]]:
    """Return prompt and output tokens of each request."""
    tokenizer = Tokenizer.load(resolve_model_folder(ModelSettings(name=model)))
    rows = [json.loads(line) for line in workload.read_text().splitlines()]
    return [(len(tokenizer.encode(row["prompt"])), row["max_tokens"]) for row in rows]


def arrivals(sizes: list[tuple[int, int]], rate: float, seed: int) -> list[SimulatedRequest]:
    """Return requests of these sizes at Poisson times, so many a second on average."""
    draw, at_s, made = random.Random(seed), 0.0, []
    for number, (prompt, output) in enumerate(sizes):
        made.append(simulated_request(number, int(at_s * 1e9), prompt, output))
        at_s += draw.expovariate(rate)
    return made


def simulated(
    options: argparse.Namespace, alone: int, beside: int, few: int, jobs: list[SimulatedRequest], seed: int
) -> list[SimulatedOutcome]:
    """Simulate one run and return its outcomes."""
    geometry = Geometry(
        "simulated", (Group(0, 1),), 40_000, 2, 16, 64, 512, 2048, 50_000, "", "",
        prefill_tokens=alone, prefill_tokens_beside=beside, prefill_tokens_few=few, prefill_decodes=DECODES,
    )  # fmt: skip
    settings = CoreSettings(max_batch_tokens=512, max_requests_per_batch=32, steps_in_flight=options.steps_in_flight)
    fit = StepTime(options.base_us, options.token_us, options.cached_us, 0.0, options.pair_us)
    return Simulation(
        settings, geometry, lambda token: SimulatedDevice(fit, token, jitter=options.jitter, seed=seed), jobs
    ).run()


def quantile(values: list[float], part: float) -> float:
    """Return a quantile of the values."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> None:
    """Run every combination of the budgets and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", type=Path, required=True, help="JSON lines with prompt and max_tokens")
    parser.add_argument("--model", default="smollm2", help="whose tokenizer counts")
    parser.add_argument("--skip", type=int, default=80)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1.41, help="requests a second")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--alone", type=int, nargs="+", default=[64, 256, 512], help="prompt tokens without decodes")
    parser.add_argument("--beside", type=int, nargs="+", default=[112], help="and beside 32 decodes")
    parser.add_argument("--few", type=int, nargs="+", default=[192], help="and beside a few, at most")
    parser.add_argument("--steps-in-flight", type=int, default=2)
    parser.add_argument("--base-us", type=float, default=6500.0)
    parser.add_argument("--token-us", type=float, default=580.0)
    parser.add_argument("--cached-us", type=float, default=0.75)
    parser.add_argument("--pair-us", type=float, default=0.05)
    parser.add_argument("--jitter", type=float, default=0.05)
    options = parser.parse_args()
    sizes = lengths(options.workload, options.model)[options.skip : options.skip + options.requests]
    for alone, beside, few in itertools.product(options.alone, options.beside, options.few):
        outcomes = [
            outcome
            for seed in range(options.seeds)
            for outcome in simulated(options, alone, beside, few, arrivals(sizes, options.rate, seed), seed)
        ]
        first = [each.ttft_ms for each in outcomes if each.ttft_ms is not None]
        gaps = [gap / 1e6 for each in outcomes for gap in each.gaps_ns]
        print(
            f"alone {alone:4} beside {beside:4} few {few:4}: first token p50 {quantile(first, 0.5):6.1f} p90 "
            f"{quantile(first, 0.9):6.1f} p99 {quantile(first, 0.99):6.1f} mean {statistics.mean(first):6.1f}, "
            f"between tokens p50 {quantile(gaps, 0.5):5.1f} p99 {quantile(gaps, 0.99):5.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
