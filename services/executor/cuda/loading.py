"""Loads a model onto a device: how large its cache may be is found out by computing the largest step there is.

What that step takes beside weights and cache is measured, not estimated; so is what the device's libraries take. The
graphs of common steps are recorded before the first request.
"""

import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import torch

from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda.engine import DeviceEngine
from noria.services.executor.cuda.moves import STAGING_BYTES
from noria.services.executor.cuda.operations import DeviceOperations
from noria.services.executor.cuda.padding import Padding, largest_sizes
from noria.services.executor.cuda.pipeline import Pipeline
from noria.services.executor.cuda.pool import Pool
from noria.services.executor.cuda.products import DeviceProducts
from noria.services.executor.cuda.streams import Device
from noria.services.executor.decoder import Decoder
from noria.services.executor.engine import CACHE_DTYPES, geometry_of
from noria.services.executor.families import Architecture, UnknownDecoderError, architecture
from noria.services.executor.footprint import Footprint
from noria.services.executor.groups import cache_groups
from noria.services.executor.loaded import Loaded
from noria.services.executor.machine import free_memory
from noria.services.executor.shape import RESERVED_CHUNKS, Shape
from noria.services.executor.sizing import sized
from noria.services.executor.stores import page_bytes
from noria.shared.errors import UserError
from noria.shared.model.model_folder import read_model_facts, resolve_model_folder, served_names

_GRAPH_BYTES: Final = 8 << 20
"""What a graph takes beside the memory that all graphs share, about."""

Tell = Callable[[str, int, int], None]


class Made(msgspec.Struct, frozen=True):
    """A model on its device, before its cache has a size. store: the cache's dtype."""

    decoder: Decoder
    architecture: Architecture
    dtype: torch.dtype
    store: torch.dtype


class MakeOperations(Protocol):
    """Chooses what computes a model's steps over a pool."""

    def __call__(self, config: ExecutorConfig, made: Made, pool: Pool) -> DeviceOperations:
        """The operations. Raises UserError when what is configured cannot be had."""


def load(
    config: ExecutorConfig, device: Device, make_operations: MakeOperations, tell: Tell = lambda what, done, of: None
) -> tuple[Pipeline, Loaded]:
    """Load the configured model onto a device. Raises UserError saying what is wrong with the model or memory.

    tell: is told of progress, as (what, how many are done, of how many).
    """
    began_s = time.monotonic()
    context = read_model_facts(resolve_model_folder(config.model), config.model).max_model_tokens
    free, _ = device.free()
    made = _model(config, device)
    pipeline, loaded = set_up(config, device, make_operations, made, context, free, tell)
    return pipeline, msgspec.structs.replace(loaded, load_s=time.monotonic() - began_s)


def set_up(
    config: ExecutorConfig,
    device: Device,
    make_operations: MakeOperations,
    made: Made,
    context: int,
    free: int,
    tell: Tell = lambda what, done, of: None,
) -> tuple[Pipeline, Loaded]:
    """Give a model on its device a cache and graphs. free: bytes before its weights were there. Raises UserError."""
    shape = _shape(config, made.architecture, context)
    padding = Padding(config.q_padding_interval_size, config.kv_padding_interval_size)
    rest = _measured(config, device, make_operations, made, shape, padding, free)
    chunk_bytes = 2 * shape.pool_chunk_pages * page_bytes(made.architecture, shape.page_size, made.store)
    shape, memory = sized(config, shape, chunk_bytes, free, made.decoder.nbytes, rest, host_free=free_memory())
    pipeline = _pipeline(config, device, make_operations, made, shape, padding)
    common = pipeline.common[: config.graphs_max]
    for done, sizes in enumerate(common):
        tell("graphs", done, len(common))
        pipeline.warm(sizes)
    name = served_names(config.model)[0]
    geometry = geometry_of(name, shape, made.dtype, chunk_bytes, device=str(device.torch_device))
    kernels = f"{pipeline.engine.operations.name}, {len(pipeline.recorded.book)} graphs"
    loaded = Loaded(shape, geometry, 0, memory, 0.0, made.decoder.steady, kernels, unused=made.decoder.unused)
    return pipeline, loaded


def device_dtype(name: str) -> torch.dtype:
    """The precision to compute in; auto is bfloat16."""
    return torch.float32 if name == "float32" else torch.bfloat16


def _model(config: ExecutorConfig, device: Device) -> Made:
    folder = resolve_model_folder(config.model)
    try:
        family = architecture(folder)
    except UnknownDecoderError as unknown:
        raise UserError(f"{unknown}; models that transformers computes are served with --device cpu") from unknown
    dtype = device_dtype(config.model.dtype)
    products = DeviceProducts(dtype, device.torch_device, config.quantization)
    decoder = Decoder(
        family,
        Checkpoint(folder),
        dtype,
        config.max_batch_tokens,
        config.max_slots,
        products,
        device=device.torch_device,
    )
    store = dtype if config.kv_cache_dtype == "auto" else CACHE_DTYPES[config.kv_cache_dtype]
    return Made(decoder, family, dtype, store)


def _shape(config: ExecutorConfig, family: Architecture, context: int) -> Shape:
    return Shape(
        max_slots=config.max_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_model_tokens=context,
        page_size=config.page_size,
        num_blocks=RESERVED_CHUNKS,
        vocabulary=family.vocabulary,
        groups=cache_groups(family.windows, context, config.max_batch_tokens, config.page_size),
    )


def _pipeline(
    config: ExecutorConfig,
    device: Device,
    make_operations: MakeOperations,
    made: Made,
    shape: Shape,
    padding: Padding,
) -> Pipeline:
    pool = Pool(shape, page_bytes(made.architecture, shape.page_size, made.store), device.torch_device)
    engine = DeviceEngine(made.decoder, shape, pool, make_operations(config, made, pool))
    return Pipeline(device, engine, padding, config.graphs_max)


def _measured(
    config: ExecutorConfig,
    device: Device,
    make_operations: MakeOperations,
    made: Made,
    shape: Shape,
    padding: Padding,
    free: int,
) -> Footprint:
    """What a step takes beside weights and cache: by the largest step, over a cache of nothing but padding."""
    pipeline = _pipeline(config, device, make_operations, made, shape, padding)
    largest = largest_sizes(shape, padding, pipeline.engine.operations.tile_tokens)
    try:
        with device.peak() as peak:
            pipeline.compute_padding(largest)
    except MemoryError as error:
        raise UserError(
            f"a step of {shape.max_batch_tokens} tokens does not fit beside the weights ({made.decoder.nbytes >> 20} of "
            f"{free >> 20} MiB): lower --max-batch-tokens or --max-requests-per-batch, or choose a smaller model ({error})"
        ) from error
    device.trim()
    left, _ = device.free()
    others = max(0, free - left - device.held())
    buffers = pipeline.buffer_bytes + 2 * min(STAGING_BYTES, int(config.host_gib * 2**30))
    del pipeline
    return Footprint(
        activations=peak.bytes,
        logits=0,  # among the activations
        buffers=buffers,
        bookkeeping=0,  # the slots' tokens are on the host
        kernels=others + config.graphs_max * _GRAPH_BYTES,
    )
