"""Loads the configured model for a processor: our own decoder where it knows the family, else transformers'."""

import time
from pathlib import Path
from typing import Final

import msgspec
import torch

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.backend import CpuBackend, choose_backend
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.cpu.step_memory import step_memory
from noria.services.executor.kv_cache.layer_groups import cache_groups
from noria.services.executor.kv_cache.memory_plan import plan_memory
from noria.services.executor.kv_cache.page_formats import CACHE_DTYPES, page_bytes
from noria.services.executor.model.architecture import Architecture, UnknownDecoderError, architecture
from noria.services.executor.model.causal_lm import CausalLM
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.model.packed_weights import PackedWeights, packed_path
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.runner.calibration import PrefillAdvice, calibrated, calibration_key
from noria.services.executor.runner.loaded_model import LoadedModel, geometry_of
from noria.services.executor.runner.machine import cores, free_memory, return_freed
from noria.shared.errors import UserError
from noria.shared.model.model_folder import read_model_facts, resolve_model_folder, served_names

_PROCESSOR: Final = Path("/proc/cpuinfo")


class LoadedWeights(msgspec.Struct, frozen=True):
    """A model with its weights. name: what computes it, as shown to the user. unkept: why packed weights were not kept, or empty.

    hosted: transformers computes it. unused: names of tensors and files in the folder that the model does not read.
    """

    model: CausalLM
    name: str
    unkept: str
    hosted: bool
    unused: tuple[str, ...]


def load(config: ExecutorConfig) -> tuple[CpuEngine, LoadedModel]:
    """Load the configured model and make its cache. Raises UserError saying what is wrong with the model or memory."""
    began = time.monotonic()
    threads = config.threads or cores()
    torch.set_num_threads(threads)
    free = free_memory()
    folder = resolve_model_folder(config.model)
    context = read_model_facts(folder, config.model).max_model_tokens
    dtype = pick_dtype(config.model.dtype)
    if config.kv_cache_dtype == "fp8":
        raise UserError("cache.kv_cache_dtype fp8 is for GPUs; with --device cpu choose int8, which is as small")
    cache_dtype = dtype if config.kv_cache_dtype == "auto" else CACHE_DTYPES[config.kv_cache_dtype]
    computing = choose_backend(config.kernels, config.quantization)
    made = make_model(config, folder, dtype, context, computing, threads)
    model, family = made.model, made.model.architecture
    return_freed()
    shape = ExecutorLimits(
        max_slots=config.max_slots,
        max_batch_tokens=config.max_batch_tokens,
        max_model_tokens=context,
        page_size=config.page_size,
        num_chunks=RESERVED_CHUNKS,
        vocabulary=family.vocabulary,
        groups=cache_groups(family.windows, context, config.max_batch_tokens, config.page_size),
    )
    chunk_bytes = 2 * shape.pool_chunk_pages * page_bytes(family, shape.page_size, cache_dtype)
    rest = step_memory(
        family,
        shape,
        dtype.itemsize,
        converts=cache_dtype != dtype,
        products=model.scratch_bytes,
        native_threads=threads if computing.kernels else 0,
        hosted=made.hosted,
    )
    shape, memory = plan_memory(config, shape, chunk_bytes, free, model.nbytes, rest)
    engine = CpuEngine(model, shape, cache_dtype)
    engine.make_ready()
    ways = made.name, str(dtype), str(cache_dtype), str(threads)
    advice = (
        _advice(config, engine, packed_path(folder, dtype, config.quantization), ways) if config.calibrate else None
    )
    geometry = geometry_of(served_names(config.model)[0], shape, dtype, chunk_bytes, advice)
    load_s = time.monotonic() - began
    return engine, LoadedModel(
        shape, geometry, threads, memory, load_s, model.batch_invariant, made.name, made.unkept, made.unused
    )


def pick_dtype(name: str, processor: Path = _PROCESSOR) -> torch.dtype:
    """The precision to compute in; auto is bfloat16 only where the processor multiplies it natively."""
    if name == "auto":
        flags = processor.read_text() if processor.exists() else ""
        name = "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def _advice(config: ExecutorConfig, engine: CpuEngine, weights: Path, ways: tuple[str, ...]) -> PrefillAdvice:
    """How many prompt tokens a step should have, by the pace kept beside the packed weights, or measured now."""
    key = calibration_key((weights.parent.parent / "config.json").read_bytes(), engine.shape, *ways)
    return calibrated(engine, weights.with_suffix(".pace") if config.keep_packed else None, key)


def make_model(
    config: ExecutorConfig, folder: Path, dtype: torch.dtype, context: int, computing: CpuBackend, threads: int
) -> LoadedWeights:
    """Load the model for requests of at most `context` tokens. Raises UserError saying why it cannot be served."""
    try:
        family = architecture(folder)
    except UnknownDecoderError as unknown:
        return _hosted(config, folder, dtype, context, computing, threads, unknown)
    return _own(config, folder, dtype, family, computing, threads)


def _own(
    config: ExecutorConfig, folder: Path, dtype: torch.dtype, family: Architecture, computing: CpuBackend, threads: int
) -> LoadedWeights:
    def made() -> tuple[Decoder, PackedWeights]:
        linear_factory, packed = computing.linear_factory(config, folder, dtype, threads)
        rows_max, samples_max = config.max_batch_tokens, config.max_slots
        return Decoder(family, Checkpoint(folder), dtype, rows_max, samples_max, linear_factory, packed), packed

    decoder, packed = made()
    unkept = packed.keep()
    if packed.written:
        # Mapped, all weights of a 135M model were read in 9.8 ms, from memory as it is allocated in 14.2.
        decoder, _ = made()
    return LoadedWeights(decoder, computing.name, unkept, hosted=False, unused=decoder.unused)


def _hosted(
    config: ExecutorConfig,
    folder: Path,
    dtype: torch.dtype,
    context: int,
    computing: CpuBackend,
    threads: int,
    unknown: UnknownDecoderError,
) -> LoadedWeights:
    # Importing transformers takes seconds, which models of our own families need not wait for.
    from noria.services.executor.cpu.hosted_trial import tolerance, trial_prompts, verify
    from noria.services.executor.hf.hosted_model import HostedOptions, open_network

    wanted = HostedOptions(folder, dtype, config.max_batch_tokens, config.max_slots, context)
    try:
        opened = open_network(wanted)
        prompts = trial_prompts(opened.architecture.vocabulary, context)
        expected = [opened.plain(prompt) for prompt in prompts]
        linear_factory, packed = computing.linear_factory(config, folder, dtype, threads)
        model = opened.hosted(wanted, linear_factory)
        unkept = packed.keep()
        verify(model, prompts, expected, tolerance(dtype, config.quantization))
    except UserError as error:
        raise UserError(f"{unknown}; transformers cannot compute it here either: {error}") from error
    name = f"transformers ({model.architecture.family}) over {computing.name}"
    return LoadedWeights(model, name, unkept, hosted=True, unused=opened.unused)
