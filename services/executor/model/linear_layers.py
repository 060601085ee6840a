"""The interface of linear layers and of what makes them. A process chooses one kind when it loads its model."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from noria.services.executor.model.checkpoint import GgufBlocks


class Linear(Protocol):
    """A linear layer: y = x @ weight.T + bias for x [rows, inputs]."""

    @property
    def inputs(self) -> int:
        """Columns of x."""

    @property
    def outputs(self) -> int:
        """Columns of y."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs] in the dtype of x, or float32 when the product gives logits."""

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute y into `out` [rows, outputs], whose dtype is that of x or float32."""


class GroupedLinear(Protocol):
    """Several linear layers of one shape, each for rows of its own, computed at once."""

    def __call__(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Rows of x [rows, inputs] up to ends[0] times the first weight, from there up to ends[1] times the next, and so on."""


class WeightSource(Protocol):
    """Where weights come from: a checkpoint, or a layer that has been loaded."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """One tensor in the given dtype, or its own where None."""

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """The kind of GGUF blocks that a matrix is also kept in; None without."""

    def blocks(self, name: str, shape: tuple[int, int]) -> GgufBlocks | None:
        """A matrix in its GGUF blocks; None without."""


class WeightMatrix(msgspec.Struct, frozen=True):
    """The weight of a linear layer in a checkpoint: parts (name, outputs) one below the other, over the same inputs.

    Names are those of tensors up to `.weight` and `.bias`.
    """

    checkpoint: WeightSource
    parts: tuple[tuple[str, int], ...]
    inputs: int
    bias: bool = False

    @property
    def name(self) -> str:
        """The name of its first part, which is unique in a model."""
        return self.parts[0][0]

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return sum(size for _, size in self.parts)

    def weights(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The weights [outputs, inputs], in the checkpoint's own dtype where None."""
        return torch.cat(
            [self.checkpoint.tensor(f"{name}.weight", (size, self.inputs), dtype) for name, size in self.parts]
        )

    def block_kinds(self) -> list[str | None]:
        """By part, the kind of GGUF blocks that its weights are also kept in, or None."""
        return [self.checkpoint.block_kind(f"{name}.weight", (size, self.inputs)) for name, size in self.parts]

    def part(self, index: int, *, blocks: bool) -> torch.Tensor | GgufBlocks:
        """One part's weights in the checkpoint's own dtype, or where `blocks` in those, if there are any."""
        name, size = self.parts[index]
        found = self.checkpoint.blocks(f"{name}.weight", (size, self.inputs)) if blocks else None
        return found or self.checkpoint.tensor(f"{name}.weight", (size, self.inputs), None)

    def biases(self, dtype: torch.dtype) -> torch.Tensor | None:
        """The biases [outputs], where there are any."""
        if not self.bias:
            return None
        return torch.cat([self.checkpoint.tensor(f"{name}.bias", (size,), dtype) for name, size in self.parts])


class LinearFactory(Protocol):
    """Makes the linear layers of a model, all of one kind."""

    @property
    def batch_invariant(self) -> bool:
        """Whether every linear layer made so far gives a row the same bits in any batch."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights made so far."""

    def scratch_bytes(self, rows_max: int) -> int:
        """Bytes that the largest layer so far takes beside weights and results, for so many rows."""

    def linear(self, matrix: WeightMatrix, rows_max: int, *, logits: bool = False, exact: bool = False) -> Linear:
        """A linear layer for at most rows_max rows.

        logits: its results are float32, whatever x is. exact: its weights stay in the model's dtype.
        """

    @property
    def groups(self) -> bool:
        """Whether it makes grouped linear layers."""

    def grouped(self, matrices: Sequence[WeightMatrix]) -> GroupedLinear:
        """Matrices of one shape and without biases as one grouped linear layer."""
