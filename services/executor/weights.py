"""Weights as a decoder uses them: fused, packed, and probed for the row floor of their shape."""

import torch

from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.linear import Floors, Linear


class Weights:
    """Reads a checkpoint in one dtype. rows_max bounds the query tokens of a step; norm_offset as in `Architecture`."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, rows_max: int, *, norm_offset: bool) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.nbytes = 0
        self._norm_offset = norm_offset
        self._rows_max = rows_max
        self._floors = Floors()

    @property
    def steady(self) -> bool:
        """Whether every matrix product gives a row the same bits in any batch."""
        return self._floors.steady

    def table(self, name: str, size: tuple[int, int]) -> torch.Tensor:
        """A matrix as it is."""
        return self._counted(self.checkpoint.tensor(name, size, self.dtype))

    def norm(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight; those to which 1 is added are kept in float32, which the sum needs."""
        if self._norm_offset:
            return self._counted(1 + self.checkpoint.tensor(name, (size,), torch.float32))
        return self._counted(self.checkpoint.tensor(name, (size,), self.dtype))

    def fused(self, parts: list[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        """One product for several projections of the same input: (name, outputs) each."""
        weights = [self.checkpoint.tensor(f"{name}.weight", (size, inputs), self.dtype) for name, size in parts]
        biases = [self.checkpoint.tensor(f"{name}.bias", (size,), self.dtype) for name, size in parts] if bias else []
        return self.linear(torch.cat(weights), torch.cat(biases) if biases else None)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None, rows_max: int | None = None) -> Linear:
        """A product ready for use."""
        self._counted(weight)
        return Linear(weight, bias, self._floors.of(weight, rows_max or self._rows_max))

    def _counted(self, tensor: torch.Tensor) -> torch.Tensor:
        self.nbytes += tensor.nbytes
        return tensor
