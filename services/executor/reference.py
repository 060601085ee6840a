"""The operations in plain PyTorch, for any dtype: what every faster implementation is measured against.

On a CPU with MKL and oneDNN each of them gives a query token the same bits whoever is in the batch and however its
prompt was cut: see docs/decisions/0004.
"""

import torch
from torch.nn import functional

from noria.services.executor.attention import singles_attention, span_attention
from noria.services.executor.cache import Cache
from noria.services.executor.families import Architecture
from noria.services.executor.linear import Linear
from noria.services.executor.step import Step


class ReferenceOperations:
    """`Operations` over one cache."""

    def __init__(self, architecture: Architecture, cache: Cache) -> None:
        self._architecture = architecture
        self._cache = cache
        self._query_width = architecture.heads * architecture.head_dim
        self._key_width = architecture.kv_heads * architecture.head_dim

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Matrix product."""
        return weight(x)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual stream; return (RMS-normed sum, sum)."""
        total = x if residual is None else residual + x
        return self._norm(total, weight), total

    def rotate_write(
        self, layer: int, qkv: torch.Tensor, head_norms: tuple[torch.Tensor, torch.Tensor] | None, step: Step
    ) -> torch.Tensor:
        """Norm the heads where the family does, rotate queries and keys in float32, write the cache."""
        heads, head_dim = self._architecture.heads, self._architecture.head_dim
        turning = qkv[:, : self._query_width + self._key_width].view(qkv.shape[0], -1, head_dim)
        if head_norms is not None:
            queries, keys = (
                self._norm(part, weight)
                for part, weight in zip((turning[:, :heads], turning[:, heads:]), head_norms, strict=True)
            )
            turning = torch.cat((queries, keys), 1)
        turning = turning.float()
        turned = torch.addcmul(turning * step.cosine, turning.roll(head_dim // 2, -1), step.sine).to(qkv.dtype)
        # The cache holds finite numbers only: what a diseased request leaves in a page must not reach the next one.
        keys = turned[:, heads:].flatten(1).nan_to_num()
        values = qkv[:, self._query_width + self._key_width :].nan_to_num()
        self._cache.write(layer, step.write_slots, keys, values)
        return turned[:, :heads]

    def attention(self, layer: int, queries: torch.Tensor, step: Step) -> torch.Tensor:
        """Causal attention over the paged cache."""
        if step.singles is not None and not step.spans:
            found = singles_attention(self._cache, layer, queries, step.singles, self._architecture)
            return torch.empty_like(found).index_copy_(0, step.singles.rows, found)
        out = queries.new_empty(queries.shape[0], self._query_width)
        if step.singles is not None:
            found = singles_attention(self._cache, layer, queries, step.singles, self._architecture)
            out.index_copy_(0, step.singles.rows, found)
        for span in step.spans:
            rows = slice(span.row, span.row + span.length)
            out[rows] = span_attention(self._cache, layer, queries[rows], span, self._architecture)
        return out

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(first half) * second half."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self._architecture.epsilon)
