"""Shared by all GPU checks: the device or a stand-in, configurations, the remaining time, and the results."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda.backend import choose_operations
from noria.services.executor.cuda.device.streams import Device
from noria.services.executor.cuda.device.torch_device import open_device
from noria.services.executor.cuda.loading import MakeOperations
from noria.shared.config.config import ModelSettings


class GpuCheck(msgspec.Struct, frozen=True):
    """The result of one check. goal: in words; passed: None without a goal, or where the check was skipped."""

    name: str
    passed: bool | None
    found: dict[str, Any]
    goal: str = ""


class GpuReport(msgspec.Struct, frozen=True):
    """The results of all checks."""

    hardware: str
    software: dict[str, str]
    date: str
    dry_run: bool
    seconds: float
    checks: list[GpuCheck]


class GpuBench:
    """A device, sizes, the remaining time, and the checks so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.dry: bool = options.dry_run
        self.model: str = options.model
        self.ends_s = time.monotonic() + options.seconds
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.checks: list[GpuCheck] = []
        self.dtype = "float32" if self.dry else "bfloat16"

    def device(self) -> Device:
        """Return the GPU, or in a dry run a CPU that stands in for one."""
        if not self.dry:
            return open_device()
        from fakes.device import FakeDevice

        return FakeDevice(0)

    @property
    def operations(self) -> MakeOperations:
        """What makes the operations: the GPU's own, or plain PyTorch in a dry run."""
        if not self.dry:
            return choose_operations
        from fakes.plain_operations import make_plain_operations

        return make_plain_operations

    def config(self, name: str, **changes: Any) -> ExecutorConfig:
        """Return an executor configuration for a small model."""
        values: dict[str, Any] = {
            "max_slots": 8,
            "max_batch_tokens": 128,
            "page_size": 16,
            "num_blocks": 200,
            "max_memory_percent": 0.9,
            "threads": None,
            "device": "cuda",
            "q_padding_interval_size": 32,
            "kv_padding_interval_size": 256,
            "graphs_max": 16,
        }
        settings = ModelSettings(name=name, dtype=changes.pop("dtype", self.dtype), max_model_tokens=384)  # type: ignore[arg-type]
        return ExecutorConfig(model=settings, **{**values, **changes})

    def out_of_time(self, name: str) -> bool:
        """Return whether no time is left for a check; it is then reported as skipped."""
        if time.monotonic() < self.ends_s:
            return False
        self.checks.append(GpuCheck(name, None, {"skipped": "the time is up"}))
        return True

    @contextmanager
    def checking(self, name: str, goal: str = "") -> Iterator[dict[str, Any]]:
        """Run the body as one check: an exception fails it. `found["passed"]`, if set, is its result."""
        found: dict[str, Any] = {}
        began_s = time.monotonic()
        try:
            yield found
        except Exception as error:  # one check that fails in whatever way must not cost the report of the others
            found |= {"passed": False, "error": f"{type(error).__name__}: {error}"[:500]}
        found["seconds"] = round(time.monotonic() - began_s, 2)
        passed = found.pop("passed", None)
        self.checks.append(GpuCheck(name, passed, found, goal))
        print(f"{name}: {'passed' if passed else 'FAILED' if passed is False else '-'} {found}", file=sys.stderr)
