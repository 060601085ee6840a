"""Loads a model onto a device, and measures the largest step to know how large the cache may be.

What that step takes beside weights and cache is measured, not estimated; so is what the device's libraries take. The
graphs of common steps are recorded before the first request.
"""

import time
from typing import Final, Protocol

import msgspec
import torch

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda.device.block_copies import STAGING_BYTES
from noria.services.executor.cuda.device.cache_pool import DeviceCachePool
from noria.services.executor.cuda.device.streams import Device
from noria.services.executor.cuda.engine import DeviceModelExecutor, DeviceOperations, ModelOnDevice
from noria.services.executor.cuda.layers.linear import DeviceLinearFactory
from noria.services.executor.cuda.layout.padding import Padding, largest_sizes
from noria.services.executor.cuda.pipeline import Pipeline
from noria.services.executor.kv_cache.layer_groups import cache_groups
from noria.services.executor.kv_cache.memory_plan import StepMemory, plan_memory
from noria.services.executor.kv_cache.page_formats import CACHE_DTYPES, page_bytes
from noria.services.executor.model.architecture import Architecture, UnknownDecoderError, architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.runner.loaded_model import LoadedModel, geometry_of
from noria.services.executor.runner.machine import free_memory
from noria.services.executor.runner.model_runner import ReportProgress
from noria.shared.errors import UserError
from noria.shared.model.model_folder import read_model_facts, resolve_model_folder, served_names

_GRAPH_BYTES: Final = 8 << 20
"""What a graph takes beside the memory that all graphs share, about."""


class MakeOperations(Protocol):
    """Chooses what computes a model's steps over a pool."""

    def __call__(self, config: ExecutorConfig, made: ModelOnDevice, pool: DeviceCachePool) -> DeviceOperations:
        """The operations. Raises UserError when what is configured cannot be had."""


def load(
    config: ExecutorConfig,
    device: Device,
    make_operations: MakeOperations,
    report: ReportProgress = lambda what, done, of: None,
) -> tuple[Pipeline, LoadedModel]:
    """Load the configured model onto a device. Raises UserError saying what is wrong with the model or memory.

    report: is called with progress, as (what, how many are done, of how many).
    """
    began_s = time.monotonic()
    context = read_model_facts(resolve_model_folder(config.model), config.model).max_model_tokens
    free, _ = device.free()
    made = _model(config, device)
    pipeline, loaded = set_up(config, device, make_operations, made, context, free, report)
    return pipeline, msgspec.structs.replace(loaded, load_s=time.monotonic() - began_s)


def set_up(
    config: ExecutorConfig,
    device: Device,
    make_operations: MakeOperations,
    made: ModelOnDevice,
    context: int,
    free: int,
    report: ReportProgress = lambda what, done, of: None,
) -> tuple[Pipeline, LoadedModel]:
    """Give a model on its device a cache and graphs. free: bytes free before its weights were there. Raises UserError."""
    shape = _shape(config, made.architecture, context)
    padding = Padding(config.q_padding_interval_size, config.kv_padding_interval_size)
    rest = _measured(config, device, make_operations, made, shape, padding, free)
    chunk_bytes = 2 * shape.pool_chunk_pages * page_bytes(made.architecture, shape.page_size, made.store)
    shape, memory = plan_memory(config, shape, chunk_bytes, free, made.decoder.nbytes, rest, host_free=free_memory())
    pipeline = _pipeline(config, device, make_operations, made, shape, padding)
    common = pipeline.common[: config.graphs_max]
    for done, sizes in enumerate(common):
        report("graphs", done, len(common))
        pipeline.warm(sizes)
    name = served_names(config.model)[0]
    geometry = geometry_of(name, shape, made.dtype, chunk_bytes, device=str(device.torch_device))
    kernels = f"{pipeline.engine.operations.name}, {len(pipeline.graph_runner.dispatcher)} graphs"
    loaded = LoadedModel(
        shape, geometry, 0, memory, 0.0, made.decoder.batch_invariant, kernels, unused=made.decoder.unused
    )
    return pipeline, loaded


def device_dtype(name: str) -> torch.dtype:
    """The precision to compute in; auto is bfloat16."""
    return torch.float32 if name == "float32" else torch.bfloat16


def _model(config: ExecutorConfig, device: Device) -> ModelOnDevice:
    folder = resolve_model_folder(config.model)
    try:
        family = architecture(folder)
    except UnknownDecoderError as unknown:
        raise UserError(f"{unknown}; models that transformers computes are served with --device cpu") from unknown
    dtype = device_dtype(config.model.dtype)
    linear_factory = DeviceLinearFactory(dtype, device.torch_device, config.quantization)
    decoder = Decoder(
        family,
        Checkpoint(folder),
        dtype,
        config.max_batch_tokens,
        config.max_slots,
        linear_factory,
        device=device.torch_device,
    )
    store = dtype if config.kv_cache_dtype == "auto" else CACHE_DTYPES[config.kv_cache_dtype]
    return ModelOnDevice(decoder, family, dtype, store)


def _shape(config: ExecutorConfig, family: Architecture, context: int) -> ExecutorLimits:
    return ExecutorLimits(
        max_slots=config.max_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_model_tokens=context,
        page_size=config.page_size,
        num_chunks=RESERVED_CHUNKS,
        vocabulary=family.vocabulary,
        groups=cache_groups(family.windows, context, config.max_batch_tokens, config.page_size),
    )


def _pipeline(
    config: ExecutorConfig,
    device: Device,
    make_operations: MakeOperations,
    made: ModelOnDevice,
    shape: ExecutorLimits,
    padding: Padding,
) -> Pipeline:
    pool = DeviceCachePool(shape, page_bytes(made.architecture, shape.page_size, made.store), device.torch_device)
    engine = DeviceModelExecutor(made.decoder, shape, pool, make_operations(config, made, pool))
    return Pipeline(device, engine, padding, config.graphs_max)


def _measured(
    config: ExecutorConfig,
    device: Device,
    make_operations: MakeOperations,
    made: ModelOnDevice,
    shape: ExecutorLimits,
    padding: Padding,
    free: int,
) -> StepMemory:
    """The memory of a step beside weights and cache, measured by the largest step over a cache of padding."""
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
    return StepMemory(
        activations=peak.bytes,
        logits=0,  # among the activations
        buffers=buffers,
        bookkeeping=0,  # the slots' tokens are on the host
        kernels=others + config.graphs_max * _GRAPH_BYTES,
    )
