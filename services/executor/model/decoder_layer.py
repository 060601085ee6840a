"""One layer's weights, and how a layer is made of operations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.model.mlp import Mlp
from noria.services.executor.model.operations import StepOperations


@dataclass(slots=True, eq=False)
class Layer:
    """head_norms are those of queries and keys, where the family norms heads.

    after_attention and after_mlp norm what those give before it is added, where the family does.
    """

    input_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    out: Linear
    after_attention: torch.Tensor | None
    mlp_norm: torch.Tensor
    mlp: Mlp
    after_mlp: torch.Tensor | None


def composed(
    operations: StepOperations, index: int, layer: Layer, x: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a layer, operation by operation. x is added to the residual stream; returns (what is to be added next, sum)."""
    x, residual = operations.add_norm(x, residual, layer.input_norm)
    queries = operations.rotate_write(index, operations.linear(x, layer.qkv), layer.head_norms)
    x = operations.linear(operations.attention(index, queries), layer.out)
    if layer.after_attention is not None:
        x = operations.norm(x, layer.after_attention)
    x, residual = operations.add_norm(x, residual, layer.mlp_norm)
    x = layer.mlp(x, operations)
    if layer.after_mlp is not None:
        x = operations.norm(x, layer.after_mlp)
    return x, residual


def in_turn(operations: StepOperations, layers: Sequence[Layer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a model's layers, operation by operation. x begins the residual stream; returns as `composed` does."""
    residual: torch.Tensor | None = None
    for index, layer in enumerate(layers):
        x, residual = composed(operations, index, layer, x, residual)
    assert residual is not None
    return x, residual
