"""`noria bench` against a whole stack with a tiny model, through HTTP and ZeroMQ, and against its executor alone."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e.harness import NORIA, Stack


def bench(folder: Path, *arguments: str) -> dict[str, Any]:
    out = folder / "result.json"
    command = [
        str(NORIA),
        "bench",
        "--input-tokens",
        "4:12",
        "--output-tokens",
        "6",
        "--requests",
        "12",
        "--out",
        str(out),
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tok/s" in done.stdout
    found = json.loads(out.read_text())
    assert isinstance(found, dict)
    return found


def check(found: dict[str, Any]) -> None:
    summary = found["summary"]
    assert (summary["requests"], summary["completed"], summary["short"], summary["uncounted"]) == (12, 12, 0, 0)
    assert summary["output_tokens"] == 72
    assert summary["itl_ms"]["count"] == 60
    assert summary["prompt_tokens"] > 48
    assert 0 < summary["ttft_ms"]["p50"] <= summary["e2e_ms"]["p50"]
    assert summary["output_tokens_s"] == pytest.approx(72 / summary["duration_s"])
    assert [row["output_tokens"] for row in found["rows"]] == [6] * 12


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_through_http(tiny: Stack, tmp_path: Path, endpoint: str) -> None:
    plot = tmp_path / "plot.png"
    found = bench(
        tmp_path,
        "--url",
        tiny.url,
        "--endpoint",
        endpoint,
        "--concurrency",
        "4",
        "--plot",
        str(plot),
        "--slo",
        "e2e:60000",
    )
    check(found)
    assert found["summary"]["goodput"]["share"] == 1
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_through_zeromq_with_poisson_arrivals(tiny: Stack, tmp_path: Path) -> None:
    found = bench(tmp_path, "--runtime-dir", str(tiny.runtime_dir), "--rate", "100")
    check(found)
    assert found["load"] == {"type": "poisson", "requests_s": 100.0, "seed": 0}


def test_the_executor_alone(tiny_model: Path, tmp_path: Path) -> None:
    arguments = (
        "--offline",
        "--model",
        str(tiny_model),
        "--dtype",
        "float32",
        "--num-blocks",
        "300",
        "--concurrency",
        "4",
    )
    check(bench(tmp_path, *arguments))
