"""Chooses what computes on a processor: native kernels of a level, or plain PyTorch and why."""

from pathlib import Path

import msgspec
import torch

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.native.library import Kernels, KernelsUnavailableError, checksum, open_kernels
from noria.services.executor.cpu.native.linear import NativeLinearFactory
from noria.services.executor.model.linear_layers import LinearFactory
from noria.services.executor.model.packed_weights import PackedWeights, identity, packed_path
from noria.services.executor.model.reference_linear import ReferenceLinearFactory
from noria.shared.errors import UserError


class CpuBackend(msgspec.Struct, frozen=True):
    """What computes on this processor. kernels: None is plain PyTorch. name: as shown to the user."""

    kernels: Kernels | None
    name: str

    def linear_factory(
        self, config: ExecutorConfig, folder: Path, dtype: torch.dtype, threads: int
    ) -> tuple[LinearFactory, PackedWeights]:
        """What makes a model's linear layers, and where their packed weights are kept."""
        if self.kernels is None:
            return ReferenceLinearFactory(dtype), PackedWeights()
        packed = PackedWeights()
        if config.keep_packed:
            key = identity(folder, dtype, config.quantization)
            packed = PackedWeights(packed_path(folder, dtype, config.quantization), key, checksum)
        return NativeLinearFactory(self.kernels, dtype, config.quantization, packed, threads), packed


def choose_backend(kernels: str, quantization: str) -> CpuBackend:
    """Choose by `executor.kernels` and `executor.quantization`. Raises UserError when what was asked for cannot be had."""
    if quantization == "fp8":
        raise UserError("executor.quantization fp8 is for GPUs; with --device cpu choose int8")
    if kernels == "reference":
        return _reference("as configured", quantization)
    if kernels == "triton":
        raise UserError("executor.kernels triton is of GPUs; with --device cpu choose auto, or what this processor has")
    try:
        found = open_kernels(kernels)
    except KernelsUnavailableError as error:
        if kernels != "auto":
            raise UserError(f"executor.kernels is {kernels}, but {error}") from error
        return _reference(str(error), quantization)
    if kernels == "auto" and found.level == "portable":
        # PyTorch's own products use more of such a processor than plain C++ does.
        return _reference("this processor has neither AVX2 nor AVX-512 with bfloat16", quantization)
    return CpuBackend(found, f"{found.level}, int8 weights" if quantization == "int8" else found.level)


def _reference(reason: str, quantization: str) -> CpuBackend:
    if quantization != "none":
        raise UserError(f"executor.quantization {quantization} needs native kernels, which are not used: {reason}")
    return CpuBackend(None, f"plain PyTorch: {reason}")
