"""Weights as a decoder uses them: tables, norms, and products whose kind it does not know."""

from collections.abc import Callable

import torch

from noria.services.executor.model.linear_layers import Grouped, Linear, Matrix, Products, Source
from noria.services.executor.model.packed_weights import PackedWeights


class Weights:
    """Reads a checkpoint in one dtype. rows_max bounds the query tokens of a step; norm_offset as in `Architecture`.

    device: where tables and norms go; products are where `products` makes them.
    """

    def __init__(
        self,
        checkpoint: Source,
        dtype: torch.dtype,
        rows_max: int,
        products: Products,
        packed: PackedWeights,
        *,
        norm_offset: bool,
        device: torch.device | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self._others = 0
        self._rows_max = rows_max
        self._products = products
        self._packed = packed
        self._norm_offset = norm_offset
        self._device = device

    @property
    def nbytes(self) -> int:
        """Bytes of everything made so far."""
        return self._others + self._products.nbytes

    def table(self, name: str, size: tuple[int, int]) -> torch.Tensor:
        """A matrix as it is."""
        return self._kept(name, lambda: self.checkpoint.tensor(name, size, self.dtype))

    def norm(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight; those to which 1 is added are kept in float32, which the sum needs."""
        if self._norm_offset:
            return self._kept(name, lambda: 1 + self.checkpoint.tensor(name, (size,), torch.float32))
        return self._kept(name, lambda: self.checkpoint.tensor(name, (size,), self.dtype))

    def fused(self, parts: list[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        """One product for several projections of the same input: (name, outputs) each."""
        return self._products.linear(Matrix(self.checkpoint, tuple(parts), inputs, bias), self._rows_max)

    @property
    def groups(self) -> bool:
        """Whether several weights can be multiplied at once."""
        return self._products.groups

    def grouped(self, parts: list[list[tuple[str, int]]], inputs: int) -> Grouped:
        """One product of several weights, each as in `fused`, every one with rows of its own."""
        return self._products.grouped([Matrix(self.checkpoint, tuple(each), inputs) for each in parts])

    def gate(self, name: str, outputs: int, inputs: int) -> Linear:
        """A small product that decides, so that its weights are never quantised: which experts, how much of one."""
        return self._products.linear(Matrix(self.checkpoint, ((name, outputs),), inputs), self._rows_max, exact=True)

    def head(self, name: str, size: tuple[int, int], rows_max: int) -> Linear:
        """The product that gives float32 logits of at most rows_max rows."""
        return self._products.linear(Matrix(self.checkpoint, ((name, size[0]),), size[1]), rows_max, logits=True)

    def _kept(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        array = self._packed.array(name, make).to(self._device)
        self._others += array.nbytes
        return array
