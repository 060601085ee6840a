"""Our matrix products in place of the linear layers of a model that transformers computes."""

from functools import cached_property

import torch
from torch import nn

from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.products import Linear, Matrix, Products

_DECIDING = ("gate", "router", "shared_expert_gate")
"""Last parts of the names of products that choose experts: never quantised."""


class Product(nn.Module):
    """A linear layer that computes by a product of ours."""

    def __init__(self, linear: Linear, matrix: Matrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = matrix.inputs, matrix.outputs
        self._linear, self._matrix, self._dtype = linear, matrix, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """X [.., inputs] to [.., outputs]."""
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.out_features)
        rows = x.reshape(-1, self.in_features).to(self._dtype).contiguous()
        return self._linear(rows).view(*x.shape[:-1], self.out_features)

    @cached_property
    def weight(self) -> torch.Tensor:
        """The plain weights, for the few models that look at them."""
        return self._matrix.weights(self._dtype)

    @cached_property
    def bias(self) -> torch.Tensor | None:
        """The plain biases."""
        return self._matrix.biases(self._dtype)


def replace(
    network: nn.Module,
    head: nn.Module | None,
    checkpoint: Checkpoint,
    products: Products,
    dtype: torch.dtype,
    rows_max: int,
    samples_max: int,
) -> None:
    """Replace every linear layer whose weights the checkpoint has under its name; the head gives float32 logits."""
    tables = {id(each.weight): name for name, each in network.named_modules() if isinstance(each, nn.Embedding)}
    layers = [(name, each) for name, each in network.named_modules() if type(each) is nn.Linear]
    for name, layer in layers:
        stored, logits = tables.get(id(layer.weight), name), layer is head
        matrix = Matrix(checkpoint, ((stored, layer.out_features),), layer.in_features, layer.bias is not None)
        if f"{stored}.weight" not in checkpoint or (matrix.bias and f"{stored}.bias" not in checkpoint):
            continue
        parent, _, last = name.rpartition(".")
        most, exact = samples_max if logits else rows_max, last in _DECIDING
        linear = products.linear(matrix, most, logits=logits, exact=exact)
        setattr(network.get_submodule(parent), last, Product(linear, matrix, dtype))


def multiplies_itself(network: nn.Module) -> bool:
    """Whether matrices are left that PyTorch multiplies as it likes."""
    tables = {id(each.weight) for each in network.modules() if isinstance(each, nn.Embedding)}
    return any(each.dim() > 1 and id(each) not in tables for each in network.parameters())
