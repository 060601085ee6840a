"""What is measured of each server, always with `noria bench`, and in which figures the result is told."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

RATE: Final = "{rate}"


class LatencyPercentiles(msgspec.Struct, frozen=True):
    """Milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class BenchSummary(msgspec.Struct, frozen=True):
    """The part of a result that is looked at."""

    requests: int
    completed: int
    short: int
    duration_s: float
    requests_s: float
    output_tokens: int
    output_tokens_s: float
    total_tokens_s: float
    cached_tokens: int
    ttft_ms: LatencyPercentiles
    itl_ms: LatencyPercentiles
    e2e_ms: LatencyPercentiles


class BenchResult(msgspec.Struct, frozen=True):
    """One run of `noria bench`."""

    began: str
    client_cpu: float
    summary: BenchSummary


@dataclass(frozen=True, slots=True)
class Measure:
    """One load on one workload. kinds: precisions it is done in."""

    name: str
    title: str
    workload: str
    arguments: tuple[str, ...]
    kinds: tuple[str, ...] = ("bf16", "int8")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a measure. more: whether more is better."""

    measure: str
    name: str
    title: str
    of: Callable[[BenchSummary], float]
    more: bool


# In this order on each fresh server; no prompt comes twice, so that a prefix cache finds only what a workload shares itself.
MEASURES: Final = (
    Measure("single", "one stream", "workload_single.jsonl", ("--concurrency", "1", "--warmup", "1")),
    Measure(
        "mixed",
        "mixed, 32 in flight",
        "workload_mixed.jsonl",
        ("--concurrency", "32", "--requests", "80", "--warmup", "32"),
    ),
    Measure(
        "shared",
        "shared prefix, 32 in flight",
        "workload_shared.jsonl",
        ("--concurrency", "32", "--warmup", "4"),
        ("bf16",),
    ),
    Measure(
        "half",
        "mixed, Poisson at half load",
        "workload_mixed.jsonl",
        ("--rate", RATE, "--skip", "80", "--requests", "60", "--seed", "7", "--warmup", "4"),
    ),
)

FIGURES: Final = (
    Figure(
        "single", "decode", "one stream, decode tok/s", lambda found: 1000 / max(found.itl_ms.mean, 1e-9), more=True
    ),
    Figure("mixed", "output", "mixed, output tok/s", lambda found: found.output_tokens_s, more=True),
    Figure("mixed", "total", "mixed, total tok/s", lambda found: found.total_tokens_s, more=True),
    Figure("mixed", "ttft_p50", "mixed, first token p50, ms", lambda found: found.ttft_ms.p50, more=False),
    Figure("mixed", "ttft_p99", "mixed, first token p99, ms", lambda found: found.ttft_ms.p99, more=False),
    Figure("mixed", "itl_p50", "mixed, between tokens p50, ms", lambda found: found.itl_ms.p50, more=False),
    Figure("mixed", "itl_p99", "mixed, between tokens p99, ms", lambda found: found.itl_ms.p99, more=False),
    Figure(
        "mixed",
        "itl_spread",
        "mixed, between tokens p99 / p50",
        lambda found: found.itl_ms.p99 / max(found.itl_ms.p50, 1e-9),
        more=False,
    ),
    Figure("shared", "total", "shared prefix, total tok/s", lambda found: found.total_tokens_s, more=True),
    Figure("half", "ttft_p50", "half load, first token p50, ms", lambda found: found.ttft_ms.p50, more=False),
    Figure("half", "ttft_p99", "half load, first token p99, ms", lambda found: found.ttft_ms.p99, more=False),
)


def measured(
    measure: Measure, url: str, workloads: Path, rate: float | None, out: Path, requests: int | None
) -> BenchResult:
    """Run it and keep its result in `out`. Raises CalledProcessError when requests fail."""
    tried = out.with_suffix(".tried")  # what failed is to be measured again
    arguments = [f"{rate:.6g}" if each == RATE and rate is not None else each for each in measure.arguments]
    if requests is not None:
        arguments += ["--requests", str(requests), "--warmup", "1"]
    command = [
        str(Path(sys.executable).with_name("noria")), "bench", "--url", url,
        "--workload", str(workloads / measure.workload), "--out", str(tried), *arguments,
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    tried.rename(out)
    return read(out)


def read(path: Path) -> BenchResult:
    """A result written earlier."""
    return msgspec.json.decode(path.read_bytes(), type=BenchResult)
