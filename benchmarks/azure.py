"""Replays a production trace through the scheduler core with a simulated device: attainment by class, load and policy.

Run: python benchmarks/azure.py TRACE.csv [--requests N] [--load PERCENT ...] [--policy NAME ...]

TRACE is the conversation trace of Azure's LLM inference traces of 2023 (Splitwise, ISCA 2024): the time, prompt and output
tokens of each request. Everything that the result depends on is fixed here:

- The device takes what a 135-million-parameter model in bfloat16 takes on two cores: 0.27 GFLOP a token at a measured 400
  GFLOP/s, 269 MB of weights a step and 23 kB a cached token at a measured 30 GB/s, and 50 us a request.
- Classes follow from the prompt: up to INTERACTIVE_TOKENS interactive, up to STANDARD_TOKENS standard, else batch. Weights
  and reservations are those that are built in, the inter-token target is one that this device can keep.
- 100 % load is the rate at which this device ends the same requests under fifo when all of them wait from the start,
  counted until nine tenths have ended. Arrivals keep the trace's pattern; its time is stretched to the load.
- A request attains its objective when it is served whole, its first token within the time of its class and its tokens not
  farther apart, on average, than its class allows.
"""

import argparse
import csv
import datetime
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from noria.proto.execution import Geometry, Group
from noria.proto.scheduling import StepTime
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.interface.traffic_rules import FairRules, TrafficClass
from noria.services.scheduler.simulation.device import SimulatedDevice
from noria.services.scheduler.simulation.jobs import SimulatedOutcome, SimulatedRequest, simulated_request
from noria.services.scheduler.simulation.report import ServiceObjective, attained
from noria.services.scheduler.simulation.runner import Simulation
from noria.shared.config.policies import POLICY_NAMES

DEVICE: Final = StepTime(base_us=9000, query_token_us=675, cache_token_us=0.77, request_us=50)
INTERACTIVE_TOKENS: Final = 512
STANDARD_TOKENS: Final = 1024
OBJECTIVES: Final = {
    "interactive": ServiceObjective(ttft_ms=2_000, itl_ms=250),
    "standard": ServiceObjective(ttft_ms=15_000, itl_ms=500),
    "batch": ServiceObjective(ttft_ms=120_000),
}
CLASSES: Final = (
    TrafficClass(
        "interactive",
        rank=2,
        weight=4.0,
        reserved_slots=4,
        reserved_cache=0.1,
        preemptible=False,
        itl_target_ms=200.0,
    ),
    TrafficClass("standard", rank=1, weight=2.0),
    TrafficClass("batch", rank=0, weight=1.0, quantum_tokens=512),
)
SETTINGS: Final = CoreSettings(
    rules=FairRules(classes=CLASSES),
    max_batch_tokens=512,
    max_requests_per_batch=64,
    queue_requests_max=1 << 30,
    queue_tokens_max=1 << 40,
)
GEOMETRY: Final = Geometry("", (Group(0, 1),), 16_384, 2, 16, 64, 512, 1 << 17, 50_000, "", "")
LOADS: Final = (50, 80, 100, 130)


class TraceRow(NamedTuple):
    """One request of the trace: nanoseconds since the trace's first request, and tokens of prompt and answer."""

    at_ns: int
    prompt_tokens: int
    output_tokens: int


def read(path: Path, most: int) -> list[TraceRow]:
    """Read the first rows of the trace."""
    rows: list[TraceRow] = []
    first: datetime.datetime | None = None
    with path.open() as file:
        for entry in csv.DictReader(file):
            if len(rows) == most:
                break
            at = datetime.datetime.fromisoformat(entry["TIMESTAMP"][:26])
            first = first or at
            since_ns = int((at - first).total_seconds() * 1e9)
            rows.append(TraceRow(since_ns, max(1, int(entry["ContextTokens"])), max(1, int(entry["GeneratedTokens"]))))
    return rows


def class_of(prompt_tokens: int) -> str:
    """Return the traffic class of a request, by the length of its prompt."""
    if prompt_tokens <= INTERACTIVE_TOKENS:
        return "interactive"
    return "standard" if prompt_tokens <= STANDARD_TOKENS else "batch"


def jobs(rows: list[TraceRow], stretch: float) -> list[SimulatedRequest]:
    """Return the trace's requests with all times multiplied by `stretch`; 0 lets all arrive at once."""
    return [
        simulated_request(
            number,
            int(row.at_ns * stretch),
            row.prompt_tokens,
            row.output_tokens,
            traffic_class=class_of(row.prompt_tokens),
            tenant="default",
        )
        for number, row in enumerate(rows)
    ]


def run(policy: str, work: list[SimulatedRequest]) -> list[SimulatedOutcome]:
    """Simulate requests under a policy and return their outcomes."""
    settings = replace(SETTINGS, policy=policy)
    return Simulation(settings, GEOMETRY, lambda token: SimulatedDevice(DEVICE, token), work).run()


def saturation_s(rows: list[TraceRow]) -> float:
    """Return the throughput in requests a second under fifo when all of them wait from the start."""
    ends = sorted(each.ended_ns or 0 for each in run("fifo", jobs(rows, 0.0)))
    counted = max(1, len(ends) * 9 // 10)
    return counted / (ends[counted - 1] / 1e9)


def attainment(rows: list[TraceRow], policy: str, stretch: float) -> dict[str, float]:
    """Return the share of requests within their objective, by class, and for all under ""."""
    outcomes = run(policy, jobs(rows, stretch))
    shares = {
        name: attained([each for each in outcomes if each.job.submission.traffic_class == name], OBJECTIVES)
        for name in OBJECTIVES
    }
    return {**shares, "": attained(outcomes, OBJECTIVES)}


def stretch_for(rows: list[TraceRow], load_percent: float, per_second: float) -> float:
    """Return the factor on the trace's times so that requests arrive at this percentage of a rate."""
    span_s = max(1e-9, (rows[-1].at_ns - rows[0].at_ns) / 1e9)
    return (len(rows) / span_s) / (per_second * load_percent / 100)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--load", type=float, nargs="*", default=list(LOADS))
    parser.add_argument("--policy", nargs="*", default=list(POLICY_NAMES))
    chosen = parser.parse_args()
    began, rows = time.perf_counter(), read(chosen.trace, chosen.requests)
    per_second = saturation_s(rows)
    counts = [sum(class_of(row.prompt_tokens) == name for row in rows) for name in OBJECTIVES]
    print(
        f"{len(rows)} requests ({', '.join(f'{n} {name}' for n, name in zip(counts, OBJECTIVES, strict=True))}); ",
        end="",
    )
    print(f"100 % load is {per_second:.3f} requests/s\n")
    print(f"| load | policy | {' | '.join(OBJECTIVES)} | all |\n| ---: | --- | ---: | ---: | ---: | ---: |")
    for load in chosen.load:
        for policy in chosen.policy:
            shares = attainment(rows, policy, stretch_for(rows, load, per_second))
            cells = " | ".join(f"{shares[name]:.1%}" for name in (*OBJECTIVES, ""))
            print(f"| {load:.0f} % | {policy} | {cells} |", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
