"""Replaces the linear layers of a model of transformers by ours."""

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from noria.services.executor.model.checkpoint import Checkpoint, GgufBlocks
from noria.services.executor.model.linear_layers import Linear, LinearFactory, WeightMatrix

_DECIDING = ("gate", "router", "shared_expert_gate")
"""Last parts of the names of products that choose experts: never quantised."""


class HostedLinear(nn.Module):
    """A torch module that computes by our linear layer. weight is empty: some models look at its dtype."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.inputs, linear.outputs
        self.weight = torch.empty(0, dtype=dtype)
        self._linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [.., outputs] for [.., inputs]."""
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.out_features)
        rows = x.reshape(-1, self.in_features).to(self.weight.dtype).contiguous()
        return self._linear(rows).view(*x.shape[:-1], self.out_features)


class _HeldWeight:
    """The weights of a loaded torch layer as a `WeightSource`; blocks are the checkpoint's."""

    def __init__(self, layer: nn.Linear | Conv1D, checkpoint: Checkpoint) -> None:
        self._turned = isinstance(layer, Conv1D)
        weight = layer.weight.detach()
        self._weight = weight.T if self._turned else weight
        self._bias = None if layer.bias is None else layer.bias.detach()
        self._checkpoint = checkpoint

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """The weight or the bias."""
        found = self._bias if name.endswith(".bias") else self._weight
        assert found is not None and tuple(found.shape) == shape
        return found.contiguous().to(dtype or found.dtype)

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """The kind of blocks that the checkpoint holds for a weight whose layout is the same there."""
        return None if self._turned else self._checkpoint.block_kind(name, shape)

    def blocks(self, name: str, shape: tuple[int, int]) -> GgufBlocks | None:
        """The weight in its GGUF blocks; None without."""
        return None if self._turned else self._checkpoint.blocks(name, shape)


def replace(
    network: nn.Module,
    head: nn.Module | None,
    checkpoint: Checkpoint,
    linear_factory: LinearFactory,
    dtype: torch.dtype,
    rows_max: int,
    samples_max: int,
) -> None:
    """Replace every linear layer of a network; the head gives float32 logits."""
    tables = {id(each.weight): name for name, each in network.named_modules() if isinstance(each, nn.Embedding)}
    layers = [(name, each) for name, each in network.named_modules() if type(each) in (nn.Linear, Conv1D)]
    for name, layer in layers:
        held, logits = _HeldWeight(layer, checkpoint), layer is head
        inputs, outputs = layer.weight.shape if isinstance(layer, Conv1D) else layer.weight.T.shape
        matrix = WeightMatrix(held, ((tables.get(id(layer.weight), name), outputs),), inputs, layer.bias is not None)
        parent, _, last = name.rpartition(".")
        most, exact = samples_max if logits else rows_max, last in _DECIDING
        linear = linear_factory.linear(matrix, most, logits=logits, exact=exact)
        setattr(network.get_submodule(parent), last, HostedLinear(linear, dtype))


def multiplies_itself(network: nn.Module) -> bool:
    """Whether matrices are left that PyTorch multiplies, in an order of its own."""
    tables = {id(each.weight) for each in network.modules() if isinstance(each, nn.Embedding)}
    return any(each.dim() > 1 and id(each) not in tables for each in network.parameters())
