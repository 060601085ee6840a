"""The processor cores and memory that this process may use, by its affinity and cgroups."""

import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_UNLIMITED: Final = 1 << 60
_CGROUP: Final = Path("/sys/fs/cgroup")
_PROCESS: Final = Path("/proc/self/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


def cores() -> int:
    """Processor cores that this process may use: its affinity, and its cgroups' quotas rounded down, at least 1."""
    count = len(os.sched_getaffinity(0))
    for folder in _folders("cpu"):
        quota = _words(folder / "cpu.max")
        if len(quota) == 2 and quota[0].isdigit():
            count = min(count, max(1, int(quota[0]) // int(quota[1])))
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:
            count = min(count, max(1, quota_us // period_us))
    return count


def free_memory() -> int:
    """Bytes that may still be taken: the least of what the machine has and what each cgroup around this process allows."""
    available = _UNLIMITED
    for line in _lines(_MEMINFO):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    for folder in _folders("memory"):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            allowed, used = _number(folder / limit), _number(folder / usage)
            if allowed is not None and used is not None and allowed < _UNLIMITED:
                available = min(available, allowed - used + _reclaimable(_lines(folder / "memory.stat")))
    return max(0, available)


def return_freed() -> None:
    """Give freed memory that the C library keeps back to the system: 111 MiB after SmolLM2-135M was loaded as bfloat16."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own
    if trim is not None:
        trim(0)


def _folders(controller: str) -> Iterator[Path]:
    """Where limits of a controller stand: those of this process's cgroup and of all around it, in either hierarchy.

    In a container the first ones may be those of the machine, which are not there; the last is then the container's own.
    """
    yield _CGROUP
    yield _CGROUP / controller
    for line in _lines(_PROCESS):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            folder = Path(path.lstrip("/"))
            for each in (folder, *folder.parents):
                if each.parts and ".." not in each.parts:
                    yield (_CGROUP / controller if controllers else _CGROUP) / each


def _reclaimable(statistics: Iterable[str]) -> int:
    """Bytes of files that the system drops when memory is wanted; the older form counts those of inner cgroups apart."""
    found = dict(line.split(" ", 1) for line in statistics if " " in line)
    return int(found.get("total_inactive_file", found.get("inactive_file", 0)))


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
