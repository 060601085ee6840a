"""Which tensors a decoder needs, and in which shapes, learned by building it over a checkpoint that only writes down.

So there is one place that says what a family's tensors are called: the code that loads them.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch

from noria.services.executor.model.checkpoint import Blocks
from noria.services.executor.model.linear_layers import Grouped, Linear, Matrix
from noria.shared.model.weight_files import TensorShape


class Requirements:
    """A `Source` of nothing: `shapes` holds what was asked of it, by name."""

    def __init__(self) -> None:
        self.shapes: dict[str, TensorShape] = {}

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """Write the tensor down; returns an empty one."""
        self.shapes[name] = shape
        return torch.empty(0, dtype=dtype)

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """None has blocks."""
        del name, shape
        return None

    def blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """None has blocks."""
        del name, shape
        return None


class RequiredProducts:
    """`Products` that write down the tensors of each matrix and multiply nothing."""

    steady = True
    groups = False
    nbytes = 0

    def __init__(self, requirements: Requirements) -> None:
        self._requirements = requirements

    def scratch_bytes(self, rows_max: int) -> int:
        """None are needed."""
        del rows_max
        return 0

    def linear(self, matrix: Matrix, rows_max: int, *, logits: bool = False, exact: bool = False) -> Linear:
        """Write down a matrix and its biases."""
        del rows_max, logits, exact
        for name, outputs in matrix.parts:
            self._requirements.shapes[f"{name}.weight"] = (outputs, matrix.inputs)
            if matrix.bias:
                self._requirements.shapes[f"{name}.bias"] = (outputs,)
        return _NoProduct(matrix.inputs, matrix.outputs)

    def grouped(self, matrices: Sequence[Matrix]) -> Grouped:
        """There are none."""
        raise NotImplementedError


class _NoProduct:
    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def __call__(self, x: torch.Tensor) -> NoReturn:
        raise NotImplementedError

    def into(self, x: torch.Tensor, out: torch.Tensor) -> NoReturn:
        raise NotImplementedError
