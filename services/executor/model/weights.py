"""Loads a decoder's weights: embeddings, norms and linear layers."""

from collections.abc import Callable

import torch

from noria.services.executor.model.linear_layers import GroupedLinear, Linear, LinearFactory, WeightMatrix, WeightSource
from noria.services.executor.model.packed_weights import PackedWeights


class DecoderWeights:
    """Reads a checkpoint in one dtype. rows_max bounds the query tokens of a step; norm_offset as in `Architecture`.

    device: where tables and norms go; products are where `products` makes them.
    """

    def __init__(
        self,
        checkpoint: WeightSource,
        dtype: torch.dtype,
        rows_max: int,
        linear_factory: LinearFactory,
        packed: PackedWeights,
        *,
        norm_offset: bool,
        device: torch.device | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.dtype = dtype
        self._others = 0
        self._rows_max = rows_max
        self._linear_factory = linear_factory
        self._packed = packed
        self._norm_offset = norm_offset
        self._device = device

    @property
    def nbytes(self) -> int:
        """Bytes of all that was loaded so far."""
        return self._others + self._linear_factory.nbytes

    def table(self, name: str, size: tuple[int, int]) -> torch.Tensor:
        """A matrix [rows, columns] that is looked up by row, such as an embedding."""
        return self._kept(name, lambda: self.checkpoint.tensor(name, size, self.dtype))

    def norm(self, name: str, size: int) -> torch.Tensor:
        """The weight of a norm; float32 where the family adds 1 to it."""
        if self._norm_offset:
            return self._kept(name, lambda: 1 + self.checkpoint.tensor(name, (size,), torch.float32))
        return self._kept(name, lambda: self.checkpoint.tensor(name, (size,), self.dtype))

    def fused(self, parts: list[tuple[str, int]], inputs: int, *, bias: bool) -> Linear:
        """One linear layer for several projections of the same input: (name, outputs) each."""
        return self._linear_factory.linear(WeightMatrix(self.checkpoint, tuple(parts), inputs, bias), self._rows_max)

    @property
    def groups(self) -> bool:
        """Whether grouped linear layers can be made."""
        return self._linear_factory.groups

    def grouped(self, parts: list[list[tuple[str, int]]], inputs: int) -> GroupedLinear:
        """A grouped linear layer of several weights, each as in `fused`."""
        return self._linear_factory.grouped([WeightMatrix(self.checkpoint, tuple(each), inputs) for each in parts])

    def gate(self, name: str, outputs: int, inputs: int) -> Linear:
        """A small linear layer that routes or gates, so that its weights are never quantised."""
        return self._linear_factory.linear(
            WeightMatrix(self.checkpoint, ((name, outputs),), inputs), self._rows_max, exact=True
        )

    def head(self, name: str, size: tuple[int, int], rows_max: int) -> Linear:
        """The linear layer that gives float32 logits of at most rows_max rows."""
        return self._linear_factory.linear(
            WeightMatrix(self.checkpoint, ((name, size[0]),), size[1]), rows_max, logits=True
        )

    def _kept(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        array = self._packed.array(name, make).to(self._device)
        self._others += array.nbytes
        return array
