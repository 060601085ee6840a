"""Linear layers by the native kernels: weights packed once, in float32, bfloat16 or int8."""

import ctypes
from collections.abc import Sequence
from typing import Final

import torch

from noria.services.executor.cpu.native.library import Kernels, LinearArguments
from noria.services.executor.model.checkpoint import GgufBlocks
from noria.services.executor.model.linear_layers import GroupedLinear, WeightMatrix
from noria.services.executor.model.packed_weights import PackedWeights

PANEL: Final = 32
"""Outputs that lie together; see api.h."""

GROUP: Final = 32
"""Inputs that share an int8 scale."""

TYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
"""Element types as the kernels number them."""

INT8: Final = TYPES[torch.int8]
INT8_OFFSETS: Final = 4
"""int8 where groups have offsets beside their scales."""
INT4_OFFSETS: Final = 10
"""The same of four bits."""

BLOCK_TYPES: Final = {"Q8_0": 5, "Q4_0": 6, "Q4_1": 7, "Q5_0": 8, "Q5_1": 9}
"""GGUF's blocks as the kernels number them."""

_FOUR_BITS: Final = frozenset({"Q4_0", "Q4_1"})
_WITH_OFFSETS: Final = frozenset({"Q4_1", "Q5_1"})
_PANEL_GROUP_BYTES: Final = {
    INT8: PANEL * (GROUP + 4),
    INT8_OFFSETS: PANEL * (GROUP + 6),
    INT4_OFFSETS: PANEL * (GROUP // 2 + 6),
}


class Scratch:
    """Memory that one product at a time works in; it grows to what the largest one takes."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def address(self, size: int) -> int:
        """Address, a multiple of 64, of so many bytes of whatever content."""
        if self._memory.numel() < size + 63:
            self._memory = torch.empty(size + 63, dtype=torch.uint8)
        return self._memory.data_ptr() + 63 & ~63


class NativeLinear:
    """A `Linear` over packed weights. x is dense, in the dtype that it was made for; `at` is its address for the kernels."""

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
        self.row_bytes = scratch_row_bytes(self.inputs) if arguments.type in _PANEL_GROUP_BYTES else 0
        self._kernel = kernels.linear
        self._arguments = arguments
        self.at = ctypes.addressof(arguments)
        self._arrays = arrays  # the arguments hold their addresses
        self._scratch = scratch
        self._threads = threads
        self.dtype, self._results = dtype, results

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs]."""
        out = torch.empty(x.shape[0], self.outputs, dtype=self._results)
        self.into(x, out)
        return out

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute y into `out` [rows, outputs]."""
        rows = x.shape[0]
        assert x.dtype == self.dtype and x.is_contiguous() and x.shape[1] == self.inputs
        assert out.is_contiguous() and out.shape == (rows, self.outputs)
        self._kernel(self.at, x.data_ptr(), out.data_ptr(), TYPES[out.dtype], rows, self.scratch(rows), self._threads)

    def scratch(self, rows: int) -> int | None:
        """Address of the memory that the kernel works in, where it needs any."""
        return self._scratch.address(rows * self.row_bytes) if self.row_bytes else None


class NativeLinearFactory:
    """Makes native linear layers for activations of one dtype.

    quantization: none or int8, which takes weights that a GGUF file had in blocks of 32 as they are.
    """

    def __init__(
        self, kernels: Kernels, dtype: torch.dtype, quantization: str, packed: PackedWeights, threads: int
    ) -> None:
        self.batch_invariant = True
        self.nbytes = 0
        self.kernels = kernels
        self.threads = threads
        self._dtype = dtype
        self._quantised = quantization == "int8"
        self._packed = packed
        self._scratch = Scratch()
        self._row_bytes = 0

    @property
    def groups(self) -> bool:
        """False: experts are computed one after the other, because the host knows which have rows."""
        return False

    def grouped(self, matrices: Sequence[WeightMatrix]) -> GroupedLinear:
        """Raises NotImplementedError: there are no native grouped layers."""
        raise NotImplementedError

    def scratch_bytes(self, rows_max: int) -> int:
        """Bytes of the largest layer's quantised inputs."""
        return rows_max * self._row_bytes

    def linear(self, matrix: WeightMatrix, rows_max: int, *, logits: bool = False, exact: bool = False) -> NativeLinear:
        """A linear layer for at most rows_max rows."""
        del rows_max
        kept_as = self._weights_type(matrix) if self._quantised and not exact else TYPES[self._dtype]
        arguments = LinearArguments(
            outputs=matrix.outputs, inputs=matrix.inputs, type=kept_as, input_type=TYPES[self._dtype]
        )
        name = ("logits." if logits else "") + matrix.name
        arrays = [self._packed.array(f"{name}.weight", lambda: self._pack(matrix, arguments))]
        arguments.weights = arrays[0].data_ptr()
        if matrix.bias:
            arrays.append(self._packed.array(f"{name}.bias", lambda: _filled_up(matrix)))
            arguments.bias = arrays[-1].data_ptr()
        self.nbytes += sum(array.nbytes for array in arrays)
        results = torch.float32 if logits else self._dtype
        made = NativeLinear(self.kernels, arguments, arrays, self._scratch, self.threads, self._dtype, results)
        self._row_bytes = max(self._row_bytes, made.row_bytes)
        return made

    def _weights_type(self, matrix: WeightMatrix) -> int:
        """How a matrix is quantised: in four bits where all parts come so, else with offsets where one comes with them."""
        kinds = matrix.block_kinds()
        if _FOUR_BITS.issuperset(kinds):
            return INT4_OFFSETS
        return INT8_OFFSETS if _WITH_OFFSETS.intersection(kinds) else INT8

    def _pack(self, matrix: WeightMatrix, arguments: LinearArguments) -> torch.Tensor:
        packed = torch.zeros(_packed_bytes(matrix, arguments.type), dtype=torch.uint8)
        arguments.weights = packed.data_ptr()
        first = 0
        for index, (_, outputs) in enumerate(matrix.parts):
            part = matrix.part(index, blocks=arguments.type in _PANEL_GROUP_BYTES)
            if isinstance(part, GgufBlocks):
                source, kind = part.rows, BLOCK_TYPES[part.kind]
            else:
                source = part if part.dtype in (torch.float32, torch.bfloat16) else part.float()
                kind = TYPES[source.dtype]
            assert source.is_contiguous()
            self.kernels.pack(ctypes.addressof(arguments), source.data_ptr(), kind, first, outputs, self.threads)
            first += outputs
        return packed


def scratch_row_bytes(inputs: int) -> int:
    """What a row of int8 products takes: a byte for each input, three float32 for each group."""
    return -(-inputs // GROUP) * (GROUP + 12)


def _packed_bytes(matrix: WeightMatrix, kept_as: int) -> int:
    panels = -(-matrix.outputs // PANEL)
    if kept_as in _PANEL_GROUP_BYTES:
        return panels * -(-matrix.inputs // GROUP) * _PANEL_GROUP_BYTES[kept_as]
    steps = -(-matrix.inputs * (4 if kept_as == TYPES[torch.float32] else 2) // 4)
    return panels * PANEL * 4 * steps


def _filled_up(matrix: WeightMatrix) -> torch.Tensor:
    bias = torch.zeros(-(-matrix.outputs // PANEL) * PANEL)
    given = matrix.biases(torch.float32)
    assert given is not None
    bias[: matrix.outputs] = given
    return bias
