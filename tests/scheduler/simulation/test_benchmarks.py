"""Short runs of the policy benchmarks: what they are to show at length, they show in small."""

import random
from pathlib import Path
from types import ModuleType

import pytest
from fakes.scripts import script


@pytest.fixture(scope="module")
def azure() -> ModuleType:
    return script("benchmarks/azure.py")


def trace(path: Path, requests: int) -> None:
    """Rows of the trace's form and of about its lengths, one every 200 ms."""
    draw = random.Random(3)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number in range(requests):
        stamp = f"2023-11-16 18:{15 + number // 300:02d}:{number // 5 % 60:02d}.{number % 5 * 200_000:06d}0"
        lines.append(f"{stamp},{min(4000, int(draw.lognormvariate(6.6, 0.9)))},{int(draw.lognormvariate(4.7, 0.7))}")
    path.write_text("\n".join(lines))


def test_under_overload_fair_keeps_interactive_requests_within_their_objective_and_fifo_does_not(
    azure: ModuleType, tmp_path: Path
) -> None:
    trace(tmp_path / "trace.csv", 150)
    rows = azure.read(tmp_path / "trace.csv", 1000)
    assert len(rows) == 150
    stretch = azure.stretch_for(rows, 130, azure.saturation_s(rows))
    fair, fifo = (azure.attainment(rows, policy, stretch) for policy in ("fair", "fifo"))
    assert fair["interactive"] >= 0.97
    assert fifo["interactive"] < 0.9


def test_what_is_admitted_meets_its_deadline_and_what_is_refused_would_not_have() -> None:
    figures = script("benchmarks/deadlines.py").measure(
        400, seed=4, forced_in=10, policy="fifo", thresholds=(16_000, 32_000)
    )
    assert figures.refused > 40
    assert figures.admitted_met >= 0.97
    assert figures.refused_missed >= 0.8
    assert figures.goodput >= 0.93 * figures.best_static
