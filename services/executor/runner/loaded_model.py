"""What loading a model found out, for the shell and for people. Knows neither tensors nor the device."""

import msgspec
import structlog

from noria.proto.execution import Geometry
from noria.services.executor.kv_cache.memory_plan import Memory
from noria.services.executor.plan.limits import Shape


class Loaded(msgspec.Struct, frozen=True):
    """What loading found out. steady: every matrix product gives a row the same bits in any batch.

    kernels: what computes, for a person. unkept: why packed weights could not be kept, or nothing.
    """

    shape: Shape
    geometry: Geometry
    threads: int
    memory: Memory
    load_s: float
    steady: bool
    kernels: str = ""
    unkept: str = ""


def report(loaded: Loaded, log: structlog.typing.FilteringBoundLogger) -> None:
    """Write down what the model is, where its memory goes, and what is not as it should be."""
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
    if not loaded.steady:
        log.warning("results depend on the batch", reason="a matrix product's order of summation varies")
