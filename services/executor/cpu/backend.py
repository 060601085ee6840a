"""What computes: native kernels of which level, or plain PyTorch and why; and the products that go with it."""

from pathlib import Path

import msgspec
import torch

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.native.library import Kernels, KernelsUnavailableError, checksum, open_kernels
from noria.services.executor.cpu.native.linear import NativeProducts
from noria.services.executor.model.linear_layers import Products
from noria.services.executor.model.packed_weights import PackedWeights, identity, packed_path
from noria.services.executor.model.reference_linear import ReferenceProducts
from noria.shared.errors import UserError


class Computing(msgspec.Struct, frozen=True):
    """What was chosen. kernels: None is plain PyTorch. name: how it is told to a person."""

    kernels: Kernels | None
    name: str

    def products(
        self, config: ExecutorConfig, folder: Path, dtype: torch.dtype, threads: int
    ) -> tuple[Products, PackedWeights]:
        """The products of a model, and where its weights are kept."""
        if self.kernels is None:
            return ReferenceProducts(dtype), PackedWeights()
        packed = PackedWeights()
        if config.keep_packed:
            key = identity(folder, dtype, config.quantization)
            packed = PackedWeights(packed_path(folder, dtype, config.quantization), key, checksum)
        return NativeProducts(self.kernels, dtype, config.quantization, packed, threads), packed


def choose(kernels: str, quantization: str) -> Computing:
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
    return Computing(found, f"{found.level}, int8 weights" if quantization == "int8" else found.level)


def _reference(reason: str, quantization: str) -> Computing:
    if quantization != "none":
        raise UserError(f"executor.quantization {quantization} needs native kernels, which are not used: {reason}")
    return Computing(None, f"plain PyTorch: {reason}")
