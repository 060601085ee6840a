"""Chooses what computes a model's steps on a GPU, by `executor.kernels`."""

from collections.abc import Sequence

import torch

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda.device.cache_pool import DeviceCachePool
from noria.services.executor.cuda.engine import DeviceOperations, ModelOnDevice
from noria.services.executor.cuda.layers.attention import DeviceAttention
from noria.services.executor.cuda.layers.installed import installed
from noria.services.executor.cuda.layers.layer_pages import layer_pages
from noria.services.executor.kv_cache.layer_groups import layer_groups
from noria.services.executor.plan.limits import ExecutorLimits
from noria.shared.errors import UserError


def choose_operations(config: ExecutorConfig, made: ModelOnDevice, pool: DeviceCachePool) -> DeviceOperations:
    """The operations over a pool: by Triton, with FlashInfer's attention where it is installed and knows the model.

    Raises UserError for kernels that are of a processor, and where Triton is not installed.
    """
    if config.kernels not in ("auto", "triton"):
        raise UserError(f"executor.kernels {config.kernels} is of processors; with --device cuda choose auto or triton")
    if not installed("triton"):
        raise UserError("a GPU computes by Triton, which is not installed: pip install 'noria[cuda]'")
    places = layer_groups(made.architecture.windows, pool.shape.max_model_tokens)
    if made.store == torch.float8_e4m3fn and not _has_fp8():
        raise UserError("cache.kv_cache_dtype fp8 needs a GPU of compute capability 8.9 or later; choose int8")
    from noria.services.executor.cuda.triton.operations import TritonOperations

    shape = pool.shape
    rows = [pool.data[:, rank * shape.num_chunks :] for _, rank in places]
    return TritonOperations(
        made.architecture,
        shape,
        rows,
        places,
        made.dtype,
        made.store,
        _flashinfer(made, shape, rows, places) if config.kernels == "auto" else None,
    )


def _has_fp8() -> bool:
    """Whether this GPU's kernels know e4m3; NVIDIA's since Ada, AMD's of the MI300 have it in another form."""
    return torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 9)


def _flashinfer(
    made: ModelOnDevice, shape: ExecutorLimits, rows: Sequence[torch.Tensor], places: Sequence[tuple[int, int]]
) -> DeviceAttention | None:
    """FlashInfer's attention, where it is installed, runs here and knows the model; of NVIDIA's GPUs alone."""
    if not installed("flashinfer") or torch.version.hip is not None:
        return None
    from noria.services.executor.cuda.layers.flashinfer_attention import FlashInferAttention, knows
    from noria.services.executor.cuda.triton.attention import TritonAttention

    if not knows(made.architecture, made.dtype, made.store):
        return None
    pages, groups = [layer_pages(each, made.store) for each in rows], [group for group, _ in places]
    otherwise = TritonAttention(made.architecture, shape, pages, groups)
    return FlashInferAttention(made.architecture, shape, pages, groups, made.dtype, otherwise)
