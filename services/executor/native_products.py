"""Products by the native kernels: weights packed once, in float32, bfloat16 or int8."""

import ctypes
from typing import Final

import torch

from noria.services.executor.native.library import Kernels, LinearArguments
from noria.services.executor.packed import PackedWeights
from noria.services.executor.products import Matrix

PANEL: Final = 32
"""Outputs that lie together; see api.h."""

GROUP: Final = 32
"""Inputs that share an int8 scale."""

TYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
"""Element types as the kernels number them."""


class Scratch:
    """Memory that one product at a time works in; grows to what the largest one takes."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def address(self, size: int) -> int:
        """Address of so many bytes of whatever content."""
        if self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=torch.uint8)
        return self._memory.data_ptr()


class NativeLinear:
    """A `Linear` over packed weights. x is dense, in the dtype that it was made for."""

    def __init__(
        self,
        kernels: Kernels,
        arguments: LinearArguments,
        arrays: list[torch.Tensor],
        scratch: Scratch,
        threads: int,
        dtype: torch.dtype,
        results: torch.dtype,
    ) -> None:
        self.inputs: int = arguments.inputs
        self.outputs: int = arguments.outputs
        self.row_bytes = scratch_row_bytes(self.inputs) if arguments.type == TYPES[torch.int8] else 0
        self._kernel = kernels.linear
        self._arguments = arguments
        self._address = ctypes.addressof(arguments)
        self._arrays = arrays  # the arguments hold their addresses
        self._scratch = scratch
        self._threads = threads
        self._dtype, self._results = dtype, results

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs]."""
        out = torch.empty(x.shape[0], self.outputs, dtype=self._results)
        self.into(x, out)
        return out

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """The same into `out`."""
        rows = x.shape[0]
        assert x.dtype == self._dtype and x.is_contiguous() and x.shape[1] == self.inputs
        assert out.is_contiguous() and out.shape == (rows, self.outputs)
        scratch = self._scratch.address(rows * self.row_bytes) if self.row_bytes else None
        self._kernel(self._address, x.data_ptr(), out.data_ptr(), TYPES[out.dtype], rows, scratch, self._threads)


class NativeProducts:
    """Makes products for activations of one dtype by kernels on some threads. quantization: none or int8."""

    def __init__(
        self, kernels: Kernels, dtype: torch.dtype, quantization: str, packed: PackedWeights, threads: int
    ) -> None:
        self.steady = True
        self.nbytes = 0
        self.kernels = kernels
        self.threads = threads
        self._dtype = dtype
        self._type = torch.int8 if quantization == "int8" else dtype
        self._packed = packed
        self._scratch = Scratch()
        self._row_bytes = 0

    def scratch_bytes(self, rows_max: int) -> int:
        """Quantised rows."""
        return rows_max * self._row_bytes

    def linear(self, matrix: Matrix, rows_max: int, *, logits: bool = False, exact: bool = False) -> NativeLinear:
        """A product ready for use."""
        del rows_max
        kept_as = self._dtype if exact else self._type
        arguments = LinearArguments(
            outputs=matrix.outputs, inputs=matrix.inputs, type=TYPES[kept_as], input_type=TYPES[self._dtype]
        )
        name = ("logits." if logits else "") + matrix.name
        arrays = [self._packed.array(f"{name}.weight", lambda: self._pack(matrix, arguments, kept_as))]
        arguments.weights = arrays[0].data_ptr()
        if matrix.bias:
            arrays.append(self._packed.array(f"{name}.bias", lambda: _filled_up(matrix)))
            arguments.bias = arrays[-1].data_ptr()
        self.nbytes += sum(array.nbytes for array in arrays)
        results = torch.float32 if logits else self._dtype
        made = NativeLinear(self.kernels, arguments, arrays, self._scratch, self.threads, self._dtype, results)
        self._row_bytes = max(self._row_bytes, made.row_bytes)
        return made

    def _pack(self, matrix: Matrix, arguments: LinearArguments, kept_as: torch.dtype) -> torch.Tensor:
        packed = torch.empty(_packed_bytes(matrix, kept_as), dtype=torch.uint8)
        arguments.weights = packed.data_ptr()
        source = matrix.weights()
        if source.dtype not in (torch.float32, torch.bfloat16):
            source = source.float()
        self.kernels.pack(ctypes.addressof(arguments), source.data_ptr(), TYPES[source.dtype], self.threads)
        return packed


def scratch_row_bytes(inputs: int) -> int:
    """What a row of int8 products takes: a byte for each input, two float32 for each group."""
    return -(-inputs // GROUP) * (GROUP + 8)


def _packed_bytes(matrix: Matrix, dtype: torch.dtype) -> int:
    outputs = -(-matrix.outputs // PANEL) * PANEL
    if dtype == torch.int8:
        return outputs * -(-matrix.inputs // GROUP) * (GROUP + 4)
    return outputs * -(-matrix.inputs * dtype.itemsize // 4) * 4


def _filled_up(matrix: Matrix) -> torch.Tensor:
    bias = torch.zeros(-(-matrix.outputs // PANEL) * PANEL)
    given = matrix.biases(torch.float32)
    assert given is not None
    bias[: matrix.outputs] = given
    return bias
