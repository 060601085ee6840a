"""The script that a GPU is checked with runs from end to end on a processor that plays one."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fakes.scripts import script


@pytest.fixture(scope="module")
def gpu_check() -> Iterator[ModuleType]:
    module = script("benchmarks/gpu_check.py")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def test_a_dry_run_makes_every_check_but_those_against_the_clock_and_all_pass(
    gpu_check: ModuleType, tmp_path: Path
) -> None:
    said: list[str] = []
    out = tmp_path / "gpu.json"
    assert gpu_check.main(["--dry-run", "--model", "none at hand", "--out", str(out)], said.append) == 0
    report = json.loads(out.read_text())
    assert json.loads(said[0]) == report and report["dry_run"]
    checks = {each["name"]: each for each in report["checks"]}
    assert all(each["passed"] is not False for each in checks.values())
    passed = {name for name, each in checks.items() if each["passed"]}
    assert {
        "numerics: llama, float32",
        "numerics: qwen3, float32",
        "numerics: mistral, sliding, float32",
        "replay equals plain computing",
        "two steps in flight equal one",
        "swap round trip",
        "dry, batch 1",
        "dry, batch 4",
    } <= passed
    assert checks["tokens of none at hand"]["found"]["skipped"]
    assert checks["dry, batch 4"]["found"]["ways"] == ["replay"]


def test_when_the_time_is_up_what_is_left_is_told_as_skipped(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "FAMILIES", {"llama": gpu_check.FAMILIES["llama"]})
    said: list[str] = []
    gpu_check.main(["--dry-run", "--model", "none at hand", "--seconds", "0"], said.append)
    checks = {each["name"]: each["found"] for each in json.loads(said[0])["checks"]}
    assert checks["numerics: llama"]["skipped"] == checks["dry"]["skipped"] == "the time is up"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_at_once_and_says_why(gpu_check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 2
    assert "executor.device is cuda, but" in capsys.readouterr().err
