"""Finds out which tensors a decoder needs, in which shapes, by loading it from a source that only writes them down.

So the names of a family's tensors stand in one place: the code that loads them.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch

from noria.services.executor.model.checkpoint import GgufBlocks
from noria.services.executor.model.linear_layers import GroupedLinear, Linear, WeightMatrix
from noria.shared.model.weight_files import TensorShape


class RequiredTensors:
    """A `WeightSource` without weights: `shapes` holds the shape of each tensor that was asked for, by name."""

    def __init__(self) -> None:
        self.shapes: dict[str, TensorShape] = {}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """Write the tensor down; returns an empty one."""
        self.shapes[name] = shape
        return torch.empty(0, dtype=dtype)

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """None: no tensor has blocks here."""
        del name, shape
        return None

    def blocks(self, name: str, shape: tuple[int, int]) -> GgufBlocks | None:
        """None: no tensor has blocks here."""
        del name, shape
        return None


class RequiredLinearFactory:
    """A `LinearFactory` whose layers write down the tensors of their matrix and multiply nothing."""

    batch_invariant = True
    groups = False
    nbytes = 0

    def __init__(self, requirements: RequiredTensors) -> None:
        self._requirements = requirements

    def scratch_bytes(self, rows_max: int) -> int:
        """0: nothing is computed."""
        del rows_max
        return 0

    def linear(self, matrix: WeightMatrix, rows_max: int, *, logits: bool = False, exact: bool = False) -> Linear:
        """Write down a matrix and its biases."""
        del rows_max, logits, exact
        for name, outputs in matrix.parts:
            self._requirements.shapes[f"{name}.weight"] = (outputs, matrix.inputs)
            if matrix.bias:
                self._requirements.shapes[f"{name}.bias"] = (outputs,)
        return _NoLinear(matrix.inputs, matrix.outputs)

    def grouped(self, matrices: Sequence[WeightMatrix]) -> GroupedLinear:
        """There are none."""
        raise NotImplementedError


class _NoLinear:
    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def __call__(self, x: torch.Tensor) -> NoReturn:
        raise NotImplementedError

    def into(self, x: torch.Tensor, out: torch.Tensor) -> NoReturn:
        raise NotImplementedError
