"""The operations in plain PyTorch that do not depend on where the cache is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch.nn import functional

from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.expert_reads import ExpertReads
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.model.operations import DecoderLayer, in_turn


class TensorOperations(ABC):
    """Base class of operations in plain PyTorch; a subclass sets _token_ids and _turns when a step begins."""

    _token_ids: torch.Tensor
    _turns: list[tuple[torch.Tensor, torch.Tensor]]

    def __init__(self, architecture: Architecture, device: torch.device | None = None) -> None:
        self._architecture = architecture
        self.experts = ExpertReads(device)
        self._query_width = architecture.heads * architecture.head_dim
        self._key_width = architecture.kv_heads * architecture.head_dim

    def embedded(self, table: torch.Tensor, scale: float) -> torch.Tensor:
        """Rows of the embedding."""
        x = table.index_select(0, self._token_ids)
        return x if scale == 1 else x.mul_(scale)

    def layers(self, layers: Sequence[DecoderLayer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All layers, operation by operation."""
        return in_turn(self, layers, x)

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Matrix product."""
        return weight(x)

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm, in float32 where the weight is."""
        epsilon = self._architecture.epsilon
        if weight.dtype == x.dtype:
            return functional.rms_norm(x, weight.shape, weight, epsilon)
        return functional.rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual stream; return (RMS-normed sum, sum)."""
        total = x if residual is None else residual + x
        return self.norm(total, weight), total

    def rotate_write(
        self, layer: int, qkv: torch.Tensor, head_norms: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        """Norm the heads where the family does, rotate queries and keys in float32, write the cache."""
        heads, head_dim = self._architecture.heads, self._architecture.head_dim
        turning = qkv[:, : self._query_width + self._key_width].view(qkv.shape[0], -1, head_dim)
        if head_norms is not None:
            queries, keys = (
                self.norm(part, weight)
                for part, weight in zip((turning[:, :heads], turning[:, heads:]), head_norms, strict=True)
            )
            turning = torch.cat((queries, keys), 1)
        turning = turning.float()
        cosine, sine = self._turns[self._architecture.layer_ropes[layer]]
        turned = torch.addcmul(turning * cosine, turning.roll(head_dim // 2, -1), sine).to(qkv.dtype)
        # The cache holds finite numbers only: what a diseased request leaves in a page must not reach the next one.
        keys, values = turned[:, heads:].flatten(1), qkv[:, self._query_width + self._key_width :]
        return self._placed(layer, turned[:, :heads], keys, values)

    @abstractmethod
    def _placed(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write keys and values [T, kv heads * d]; return queries [T, heads, d] as attention takes them."""

    def place(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write keys and values that are rotated already; return queries as attention takes them."""
        return self._placed(layer, queries.view(queries.shape[0], -1, self._architecture.head_dim), keys, values)

    @abstractmethod
    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged cache."""

    @abstractmethod
    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head."""

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """activation(first half) * second half."""
        gate, up = gate_up.chunk(2, -1)
        if self._architecture.activation == "silu":
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh") * up
