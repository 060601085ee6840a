"""Divides memory: how many chunks the cache and the host pool have beside weights and steps.

Says where each byte goes, in the order of the table at the start. Knows neither tensors nor the machine.
"""

import math
from bisect import bisect_right
from fractions import Fraction

import msgspec

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.shared.errors import UserError


class StepMemory(msgspec.Struct, frozen=True):
    """Bytes of a step beside weights and cache: activations, logits, input arrays, bookkeeping, compiled kernels."""

    activations: int
    logits: int
    buffers: int
    bookkeeping: int
    kernels: int

    @property
    def total(self) -> int:
        """The bytes of all shares together."""
        return self.activations + self.logits + self.buffers + self.bookkeeping + self.kernels


class MemoryShare(msgspec.Struct, frozen=True):
    """What takes how many bytes: one line of the start-up table."""

    name: str
    bytes: int


class MemoryPlan(msgspec.Struct, frozen=True):
    """Where the memory goes, in bytes. full_requests: requests of the whole context that the cache holds at once."""

    free_bytes: int
    shares: tuple[MemoryShare, ...]
    cache_tokens: int
    full_requests: int


def plan_memory(
    config: ExecutorConfig,
    shape: ExecutorLimits,
    chunk_bytes: int,
    free: int,
    weights: int,
    rest: StepMemory,
    host_free: int | None = None,
) -> tuple[ExecutorLimits, MemoryPlan]:
    """Fill in a shape's num_chunks and num_host_chunks. free: bytes before the weights were loaded.

    host_free: bytes free on the host, where that is not what the model is in.

    Raises UserError, with the numbers and what to change, when the cache would not hold one request of the declared
    context, when more blocks are pinned than there is memory for, and when the host pool asks for more than it may.
    """
    chunks = (
        _fitting(config, shape, chunk_bytes, free, weights, rest) if config.num_blocks is None else config.num_blocks
    )
    if chunks < _chunks_needed(shape):
        raise UserError(_too_small(config, shape, chunk_bytes, chunks, free, weights, rest))
    taken = weights + rest.total + chunks * chunk_bytes
    if taken > free:
        raise UserError(
            f"{chunks} cache blocks need {_mib(chunks * chunk_bytes)} MiB, but {_account(free, weights, rest)}; "
            f"lower --num-blocks to at most {max(0, free - weights - rest.total) // chunk_bytes} or leave it out"
        )
    host = _host_chunks(config, chunk_bytes, free - taken if host_free is None else host_free)
    shares = (
        MemoryShare("weights", weights),
        MemoryShare("activations", rest.activations),
        MemoryShare("logits", rest.logits),
        MemoryShare("input buffers", rest.buffers),
        MemoryShare("bookkeeping", rest.bookkeeping),
        MemoryShare("kernels", rest.kernels),
        MemoryShare("cache", chunks * chunk_bytes),
        MemoryShare("host cache", host * chunk_bytes),
    )
    room = Fraction(chunks - RESERVED_CHUNKS) / _chunks_per_request(shape)
    memory = MemoryPlan(free, shares, int(room * shape.max_model_tokens), int(room))
    return msgspec.structs.replace(shape, num_chunks=chunks, num_host_chunks=host), memory


def request_pages(shape: ExecutorLimits, tokens: int) -> tuple[int, ...]:
    """By group, the most blocks that one request of so many tokens holds."""
    pages = -(-tokens // shape.page_size)
    return tuple(min(pages, group.ring_pages) if group.ring_pages else pages for group in shape.groups)


def _fitting(
    config: ExecutorConfig, shape: ExecutorLimits, chunk_bytes: int, free: int, weights: int, rest: StepMemory
) -> int:
    """Chunks that the memory which may be used holds, but no more than all slots together could ever fill."""
    fitting = max(0, int(free * config.max_memory_percent) - weights - rest.total) // chunk_bytes
    useful = math.ceil(config.max_slots * _chunks_per_request(shape)) + RESERVED_CHUNKS + len(shape.groups)
    return min(fitting, useful)


def _too_small(
    config: ExecutorConfig,
    shape: ExecutorLimits,
    chunk_bytes: int,
    chunks: int,
    free: int,
    weights: int,
    rest: StepMemory,
) -> str:
    """Why a cache of so few chunks will not do, and every way out that there is."""
    needed, holds = _chunks_needed(shape), _largest_tokens(shape, chunks)
    ways = [f"lower --max-model-tokens to at most {holds}"] if holds >= 2 else []
    why = ""
    if config.num_blocks is not None:
        ways.append(f"raise --num-blocks to at least {needed}")
    else:
        why = f" ({_account(free, weights, rest)}, and --max-memory-percent {config.max_memory_percent:g} may be used)"
        wanted = weights + rest.total + needed * chunk_bytes
        share = math.ceil(100 * wanted / free) / 100
        if share <= 1:
            ways.append(f"raise --max-memory-percent to at least {share:g}")
        lacking = math.ceil(wanted / config.max_memory_percent) - free
        ways.append(f"give it {_mib(lacking) + 1} MiB more memory")
        ways.append("lower --max-batch-tokens or --max-requests-per-batch")
        if config.kv_cache_dtype != "int8":
            ways.append("choose --kv-cache-dtype int8")
    return (
        f"one request of the whole context, {shape.max_model_tokens} tokens, needs {needed} cache blocks "
        f"({_mib(needed * chunk_bytes)} MiB), but there are {chunks}, which hold {holds} tokens{why}: "
        f"{', '.join(ways[:-1])}{' or ' if len(ways) > 1 else ''}{ways[-1]}"
    )


def _account(free: int, weights: int, rest: StepMemory) -> str:
    return (
        f"{_mib(free)} MiB are free, of which the weights take {_mib(weights)} MiB, activations {_mib(rest.activations)} MiB, "
        f"logits {_mib(rest.logits)} MiB, buffers, bookkeeping and kernels "
        f"{_mib(rest.buffers + rest.bookkeeping + rest.kernels)} MiB"
    )


def _host_chunks(config: ExecutorConfig, chunk_bytes: int, left: int) -> int:
    wanted = int(config.host_gib * 2**30)
    allowed = int(max(0, left) * config.host_share_max)
    if wanted > allowed:
        raise UserError(
            f"cache.cpu_offload_space asks for {_mib(wanted)} MiB, but only {_mib(max(0, left))} MiB of host memory stay "
            f"free beside the model and its cache, of which {config.host_share_max * 100:g}% ({_mib(allowed)} MiB) may be taken; "
            "lower --cpu-offload-space or --max-memory-percent, or raise --cpu-offload-space-safety-threshold"
        )
    return wanted // chunk_bytes


def _largest_tokens(shape: ExecutorLimits, chunks: int) -> int:
    """The longest request, up to the whole context, that so many chunks of the pool hold when it is alone."""
    lengths = range(1, shape.max_model_tokens + 1)
    return bisect_right(lengths, chunks - RESERVED_CHUNKS, key=lambda tokens: _chunks_alone(shape, tokens))


def _chunks_needed(shape: ExecutorLimits) -> int:
    """Chunks of the smallest pool that holds one request of the whole context."""
    return RESERVED_CHUNKS + _chunks_alone(shape, shape.max_model_tokens)


def _chunks_alone(shape: ExecutorLimits, tokens: int) -> int:
    """Chunks that one request of so many tokens takes when it is alone."""
    pages = request_pages(shape, tokens)
    return sum(-(-count // group.blocks_per_chunk) for count, group in zip(pages, shape.groups, strict=True))


def _chunks_per_request(shape: ExecutorLimits) -> Fraction:
    """Chunks that one request of the whole context takes among many, who share chunks."""
    pages = request_pages(shape, shape.max_model_tokens)
    return sum(
        (Fraction(count, group.blocks_per_chunk) for count, group in zip(pages, shape.groups, strict=True)), Fraction(0)
    )


def _mib(count: int) -> int:
    return count >> 20
