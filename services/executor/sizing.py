"""How many cache blocks fit: from the memory this container may still use, or as configured."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.families import Architecture
from noria.services.executor.shape import RESERVED_BLOCKS
from noria.shared.errors import UserError

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


def num_blocks(
    config: ExecutorConfig, architecture: Architecture, max_model_tokens: int, item_bytes: int, free: int, weights: int
) -> int:
    """Blocks in the pool, reserved ones included. free: bytes before the weights were loaded.

    Raises UserError, with the numbers, when no request of the declared context fits, or a pinned number does not.
    """
    block_bytes = architecture.cache_bytes_per_token(item_bytes) * config.page_size
    pages = -(-max_model_tokens // config.page_size)
    if config.num_blocks is not None:
        if config.num_blocks <= RESERVED_BLOCKS:
            raise UserError(f"cache.num_blocks is {config.num_blocks}, but {RESERVED_BLOCKS} are reserved; give more")
        if config.num_blocks * block_bytes > free:
            raise UserError(
                f"{config.num_blocks} cache blocks need {config.num_blocks * block_bytes >> 20} MiB, but only "
                f"{free >> 20} MiB are free; lower --num-blocks"
            )
        return config.num_blocks
    budget = int(free * config.max_memory_percent) - weights - workspace_bytes(config, architecture)
    fitting = max(0, budget) // block_bytes
    needed = pages + RESERVED_BLOCKS
    if fitting < needed:
        raise UserError(
            f"one request of {max_model_tokens} tokens needs {needed} cache blocks ({needed * block_bytes >> 20} MiB), but only "
            f"{fitting} fit: {free >> 20} MiB are free, {config.max_memory_percent:.0%} of that may be used, and the weights "
            f"take {weights >> 20} MiB; lower --max-model-tokens, raise --max-memory-percent, or pin --num-blocks"
        )
    return min(fitting, config.max_slots * pages + RESERVED_BLOCKS)


def workspace_bytes(config: ExecutorConfig, architecture: Architecture) -> int:
    """Rough bytes of a step: logits, and the widest activations of a full batch, in float32, a few copies each."""
    logits = 4 * config.max_slots * architecture.vocabulary * 4
    widest = 2 * architecture.intermediate + 4 * architecture.hidden
    return logits + 4 * config.max_batch_tokens * widest * 4


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
