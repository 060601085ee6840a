"""What this process may use of the machine: processor cores and memory, within its cgroup."""

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_UNLIMITED: Final = 1 << 60
_CGROUP: Final = Path("/sys/fs/cgroup")


def cores() -> int:
    """Processor cores that this process may use: its affinity, and its cgroup's quota rounded down, at least 1."""
    count = len(os.sched_getaffinity(0))
    quota = _words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit():
        count = min(count, max(1, int(quota[0]) // int(quota[1])))
    quota_us, period_us = _number(_CGROUP / "cpu/cpu.cfs_quota_us"), _number(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota_us and period_us and quota_us > 0:
        count = min(count, max(1, quota_us // period_us))
    return count


def free_memory() -> int:
    """Bytes that may still be taken: the least of what the machine has and what the cgroup allows."""
    available = _UNLIMITED
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for limit, usage, statistics in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current", _CGROUP / "memory.stat"),
        (
            _CGROUP / "memory/memory.limit_in_bytes",
            _CGROUP / "memory/memory.usage_in_bytes",
            _CGROUP / "memory/memory.stat",
        ),
    ):
        allowed, used = _number(limit), _number(usage)
        if allowed is not None and used is not None and allowed < _UNLIMITED:
            available = min(available, allowed - used + _reclaimable(_lines(statistics)))
    return available


def return_freed() -> None:
    """Give freed memory that the C library keeps back to the system: 111 MiB after SmolLM2-135M was loaded as bfloat16."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
    if trim is not None:
        trim(0)


def _reclaimable(statistics: Iterable[str]) -> int:
    for line in statistics:
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    lines = _lines(path)
    return lines[0].split() if lines else []


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].lstrip("-").isdigit() else None
