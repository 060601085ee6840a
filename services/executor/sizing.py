"""How many chunks the cache has: what is left of the memory that may be used, or as configured; and the host pool.

Says where each byte goes, in the order of the table at the start. Knows neither tensors nor the machine.
"""

import math
from fractions import Fraction

import msgspec

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.footprint import Footprint
from noria.services.executor.shape import RESERVED_CHUNKS, Shape
from noria.shared.errors import UserError


class Share(msgspec.Struct, frozen=True):
    """One line of the table: what takes how many bytes."""

    name: str
    bytes: int


class Memory(msgspec.Struct, frozen=True):
    """Where the memory goes. full_requests: requests of the whole context that the cache holds at once."""

    free_bytes: int
    shares: tuple[Share, ...]
    cache_tokens: int
    full_requests: int


def sized(
    config: ExecutorConfig, shape: Shape, chunk_bytes: int, free: int, weights: int, rest: Footprint
) -> tuple[Shape, Memory]:
    """Complete a shape, whose num_blocks and host_slots do not count yet. free: bytes before the weights were loaded.

    Raises UserError, with the numbers, when no request of the declared context fits and num_blocks is not pinned, and
    when the host pool asks for more than it may.
    """
    chunks = _pinned(config, shape, chunk_bytes, free - weights) or _fitting(
        config, shape, chunk_bytes, free, weights, rest
    )
    taken = weights + rest.total + chunks * chunk_bytes
    host = _host_slots(config, chunk_bytes, free - taken)
    shares = (
        Share("weights", weights),
        Share("activations", rest.activations),
        Share("logits", rest.logits),
        Share("input buffers", rest.buffers),
        Share("bookkeeping", rest.bookkeeping),
        Share("cache", chunks * chunk_bytes),
        Share("host cache", host * chunk_bytes),
    )
    room = Fraction(chunks - RESERVED_CHUNKS) / _chunks_per_request(shape)
    memory = Memory(free, shares, int(room * shape.max_model_tokens), int(room))
    return msgspec.structs.replace(shape, num_blocks=chunks, host_slots=host), memory


def request_pages(shape: Shape, tokens: int) -> tuple[int, ...]:
    """By group, the most blocks that one request of so many tokens holds."""
    pages = -(-tokens // shape.page_size)
    return tuple(min(pages, group.ring_pages) if group.ring_pages else pages for group in shape.groups)


def _pinned(config: ExecutorConfig, shape: Shape, chunk_bytes: int, left: int) -> int | None:
    if config.num_blocks is None:
        return None
    needed = RESERVED_CHUNKS + _chunks_alone(shape)
    if config.num_blocks <= RESERVED_CHUNKS:
        raise UserError(
            f"cache.num_blocks is {config.num_blocks}, but {RESERVED_CHUNKS} are reserved; give at least {needed}"
        )
    if config.num_blocks * chunk_bytes > left:
        raise UserError(
            f"{config.num_blocks} cache blocks need {_mib(config.num_blocks * chunk_bytes)} MiB, but only "
            f"{_mib(max(0, left))} MiB are free beside the weights; lower --num-blocks"
        )
    return config.num_blocks


def _fitting(config: ExecutorConfig, shape: Shape, chunk_bytes: int, free: int, weights: int, rest: Footprint) -> int:
    budget = int(free * config.max_memory_percent)
    fitting = max(0, budget - weights - rest.total) // chunk_bytes
    needed = RESERVED_CHUNKS + _chunks_alone(shape)
    if fitting < needed:
        raise UserError(
            f"one request of {shape.max_model_tokens} tokens needs {needed} cache blocks "
            f"({_mib(needed * chunk_bytes)} MiB), but only {fitting} fit: {_mib(free)} MiB are free, "
            f"{config.max_memory_percent * 100:g}% of that may be used ({_mib(budget)} MiB), the weights take {_mib(weights)} "
            f"MiB, activations {_mib(rest.activations)} MiB, logits {_mib(rest.logits)} MiB, buffers and bookkeeping "
            f"{_mib(rest.buffers + rest.bookkeeping)} MiB; lower --max-model-tokens, --max-batch-tokens or "
            "--max-requests-per-batch, raise --max-memory-percent, choose --kv-cache-dtype int8, or pin --num-blocks"
        )
    useful = math.ceil(config.max_slots * _chunks_per_request(shape)) + RESERVED_CHUNKS + len(shape.groups)
    return min(fitting, useful)


def _host_slots(config: ExecutorConfig, chunk_bytes: int, left: int) -> int:
    wanted = int(config.host_gib * 2**30)
    allowed = int(max(0, left) * config.host_share_max)
    if wanted > allowed:
        raise UserError(
            f"cache.cpu_offload_space asks for {_mib(wanted)} MiB, but only {_mib(max(0, left))} MiB of host memory stay "
            f"free beside the model and its cache, of which {config.host_share_max * 100:g}% ({_mib(allowed)} MiB) may be taken; "
            "lower --cpu-offload-space or --max-memory-percent, or raise --cpu-offload-space-safety-threshold"
        )
    return wanted // chunk_bytes


def _chunks_alone(shape: Shape) -> int:
    """Chunks that one request of the whole context takes when it is alone."""
    pages = request_pages(shape, shape.max_model_tokens)
    return sum(-(-count // group.blocks_per_chunk) for count, group in zip(pages, shape.groups, strict=True))


def _chunks_per_request(shape: Shape) -> Fraction:
    """The same among many, who share chunks."""
    pages = request_pages(shape, shape.max_model_tokens)
    return sum(
        (Fraction(count, group.blocks_per_chunk) for count, group in zip(pages, shape.groups, strict=True)), Fraction(0)
    )


def _mib(count: int) -> int:
    return count >> 20
