"""What the checks of a GPU share: a device or what plays one, configurations, the time that is left, and what was found."""

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


class Check(msgspec.Struct, frozen=True):
    """One thing looked at. goal: in words; passed: None where it has no goal or could not be looked at."""

    name: str
    passed: bool | None
    found: dict[str, Any]
    goal: str = ""


class Report(msgspec.Struct, frozen=True):
    """The whole run."""

    hardware: str
    software: dict[str, str]
    date: str
    dry_run: bool
    seconds: float
    checks: list[Check]


class Bench:
    """What the checks share: a device, sizes, and the time that is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.dry: bool = options.dry_run
        self.model: str = options.model
        self.ends_s = time.monotonic() + options.seconds
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.checks: list[Check] = []
        self.dtype = "float32" if self.dry else "bfloat16"

    def device(self) -> Device:
        """A GPU, or in a dry run a processor that plays one."""
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
        """An executor's configuration for a small model."""
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

    def over(self, name: str) -> bool:
        """Whether there is no time left for a check; it is told among the others then."""
        if time.monotonic() < self.ends_s:
            return False
        self.checks.append(Check(name, None, {"skipped": "the time is up"}))
        return True

    @contextmanager
    def looking(self, name: str, goal: str = "") -> Iterator[dict[str, Any]]:
        """One check: what raises has failed. `found["passed"]`, where set, becomes its verdict."""
        found: dict[str, Any] = {}
        began_s = time.monotonic()
        try:
            yield found
        except Exception as error:  # one check that fails in whatever way must not cost the report of the others
            found |= {"passed": False, "error": f"{type(error).__name__}: {error}"[:500]}
        found["seconds"] = round(time.monotonic() - began_s, 2)
        passed = found.pop("passed", None)
        self.checks.append(Check(name, passed, found, goal))
        print(f"{name}: {'passed' if passed else 'FAILED' if passed is False else '-'} {found}", file=sys.stderr)
