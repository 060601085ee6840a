"""What loading found out: limits, geometry, memory and what computes."""

from typing import Final

import msgspec
import structlog
import torch

from noria.proto.execution import Geometry
from noria.services.executor.kv_cache.memory_plan import MemoryPlan
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.runner.calibration import PrefillAdvice, decodes_measured

_NAMES_MAX: Final = 50


class LoadedModel(msgspec.Struct, frozen=True):
    """What loading found out. batch_invariant: every matrix product gives a row the same bits in any batch.

    kernels: what computes, for a person. unkept: why packed weights could not be kept, or nothing. unused: names of
    tensors and files in the model's folder that it does not read.
    """

    shape: ExecutorLimits
    geometry: Geometry
    threads: int
    memory: MemoryPlan
    load_s: float
    batch_invariant: bool
    kernels: str = ""
    unkept: str = ""
    unused: tuple[str, ...] = ()


def geometry_of(
    name: str,
    shape: ExecutorLimits,
    dtype: torch.dtype,
    chunk_bytes: int,
    advice: PrefillAdvice | None = None,
    device: str = "cpu",
) -> Geometry:
    """The geometry message for the scheduler. chunk_bytes: of keys and values; advice: None where nothing was measured."""
    return Geometry(
        model=name,
        groups=shape.groups,
        num_blocks=shape.num_chunks,
        reserved_blocks=RESERVED_CHUNKS,
        page_size=shape.page_size,
        max_slots=shape.max_slots,
        max_batch_tokens=shape.max_batch_tokens,
        max_model_tokens=shape.max_model_tokens,
        vocabulary=shape.vocabulary,
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        host_slots=shape.num_host_chunks,
        bytes_per_chunk=chunk_bytes,
        prefill_tokens=advice.alone if advice else 0,
        prefill_tokens_beside=advice.beside if advice else 0,
        prefill_tokens_few=advice.few if advice else 0,
        prefill_decodes=decodes_measured(shape) if advice else 0,
    )


def log_loaded_model(loaded: LoadedModel, log: structlog.typing.FilteringBoundLogger) -> None:
    """Log the model, where its memory goes, and warnings."""
    geometry, memory = loaded.geometry, loaded.memory
    log.info(
        "model loaded",
        model=geometry.model,
        dtype=geometry.dtype,
        threads=loaded.threads,
        kernels=loaded.kernels,
        seconds=round(loaded.load_s, 2),
    )
    log.info(
        "memory",
        free_mib=memory.free_bytes >> 20,
        **{f"{share.name.replace(' ', '_')}_mib": share.bytes >> 20 for share in memory.shares},
        num_blocks=geometry.num_blocks,
        cache_tokens=memory.cache_tokens,
        full_requests=memory.full_requests,
    )
    if loaded.unkept:
        log.warning("packed weights cannot be kept", reason=loaded.unkept)
    if loaded.unused:
        # Cut, because a folder may hold another model's thousand tensors too.
        log.warning("weights are not used", count=len(loaded.unused), names=list(loaded.unused[:_NAMES_MAX]))
    if not loaded.batch_invariant:
        log.warning("results depend on the batch", reason="a matrix product's order of summation varies")
