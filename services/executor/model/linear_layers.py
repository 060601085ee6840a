"""What a decoder asks of matrix products, and what a product is made from. Which kind a process uses is chosen once."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from noria.services.executor.model.checkpoint import Blocks


class Linear(Protocol):
    """y = x @ weight.T + bias for x [rows, inputs], the same bits for a row whatever rows stand beside it."""

    @property
    def inputs(self) -> int:
        """Numbers in a row of x."""

    @property
    def outputs(self) -> int:
        """Numbers in a row of y."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs] in the dtype of x, or float32 when the product gives logits."""

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """The same into `out` [rows, outputs], whose dtype is that of x or float32."""


class Grouped(Protocol):
    """Products of several weights of one shape, each with rows of its own."""

    def __call__(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Rows of x [rows, inputs] up to ends[0] times the first weight, from there up to ends[1] times the next, and so on."""


class Source(Protocol):
    """Where weights come from: a checkpoint, or a layer that has been loaded."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """One tensor in the given dtype, or its own where None."""

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """The kind of blocks that a matrix is also kept in."""

    def blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """Those blocks."""


class Matrix(msgspec.Struct, frozen=True):
    """Weights as a checkpoint has them: parts (name, outputs) one below the other, over the same inputs.

    Names are those of tensors up to `.weight` and `.bias`.
    """

    checkpoint: Source
    parts: tuple[tuple[str, int], ...]
    inputs: int
    bias: bool = False

    @property
    def name(self) -> str:
        """What it is called: its first part, which no other product of a model has."""
        return self.parts[0][0]

    @property
    def outputs(self) -> int:
        """Rows."""
        return sum(size for _, size in self.parts)

    def weights(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The weights [outputs, inputs], in the checkpoint's own dtype where None."""
        return torch.cat(
            [self.checkpoint.tensor(f"{name}.weight", (size, self.inputs), dtype) for name, size in self.parts]
        )

    def block_kinds(self) -> list[str | None]:
        """By part, the kind of blocks that its weights are also kept in."""
        return [self.checkpoint.block_kind(f"{name}.weight", (size, self.inputs)) for name, size in self.parts]

    def part(self, index: int, *, blocks: bool) -> torch.Tensor | Blocks:
        """One part's weights in the checkpoint's own dtype, or where `blocks` in those, if there are any."""
        name, size = self.parts[index]
        found = self.checkpoint.blocks(f"{name}.weight", (size, self.inputs)) if blocks else None
        return found or self.checkpoint.tensor(f"{name}.weight", (size, self.inputs), None)

    def biases(self, dtype: torch.dtype) -> torch.Tensor | None:
        """The biases [outputs], where there are any."""
        if not self.bias:
            return None
        return torch.cat([self.checkpoint.tensor(f"{name}.bias", (size,), dtype) for name, size in self.parts])


class Products(Protocol):
    """Makes one kind of products."""

    @property
    def steady(self) -> bool:
        """Whether every product made so far gives a row the same bits in any batch."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights made so far."""

    def scratch_bytes(self, rows_max: int) -> int:
        """What the largest product so far takes beside its weights and results, for so many rows."""

    def linear(self, matrix: Matrix, rows_max: int, *, logits: bool = False, exact: bool = False) -> Linear:
        """A product of at most rows_max rows.

        logits: its results are float32, whatever x is. exact: its weights stay in the model's dtype.
        """

    @property
    def groups(self) -> bool:
        """Whether it makes products of several weights at once."""

    def grouped(self, matrices: Sequence[Matrix]) -> Grouped:
        """Matrices of one shape and without biases as one product, where it makes such."""
