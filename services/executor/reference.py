"""The operations in plain PyTorch, for any dtype: what every faster implementation is measured against.

On a CPU with MKL and oneDNN each of them gives a query token the same bits whoever is in the batch and however its
prompt was cut: see docs/decisions/0004.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from noria.services.executor.attention import singles_attention, span_attention
from noria.services.executor.batch import Batch
from noria.services.executor.cache import Cache
from noria.services.executor.families import Architecture
from noria.services.executor.layer import Layer, in_turn
from noria.services.executor.products import Linear
from noria.services.executor.sampler import Drawn, Sampler
from noria.services.executor.sampling import sample
from noria.services.executor.shape import Integers, Shape
from noria.services.executor.step import Rotations, Step, to_step


class ReferenceOperations:
    """`Operations` over one cache. places: for each layer its group and its rank there."""

    _step: Step

    def __init__(
        self,
        architecture: Architecture,
        shape: Shape,
        cache: Cache,
        places: Sequence[tuple[int, int]],
        dtype: torch.dtype,
    ) -> None:
        self._architecture = architecture
        self._shape = shape
        self._dtype = dtype
        self._rotations = [
            Rotations(rope, architecture.head_dim, shape.max_model_tokens) for rope in architecture.ropes
        ]
        self._groups = [group for group, _ in places]
        self._cache = cache
        self._query_width = architecture.heads * architecture.head_dim
        self._key_width = architecture.kv_heads * architecture.head_dim

    def begin(self, batch: Batch, rows: Integers | None) -> None:
        """Lay out a step."""
        self._rows = None if rows is None else torch.from_numpy(rows)
        self._step = to_step(batch, self._rotations, self._shape, self._architecture.query_group, self._dtype)

    def embedded(self, table: torch.Tensor, scale: float) -> torch.Tensor:
        """Rows of the embedding."""
        x = table.index_select(0, self._step.token_ids)
        return x if scale == 1 else x.mul_(scale)

    def layers(self, layers: Sequence[Layer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
        cosine, sine = self._step.turns[self._architecture.layer_ropes[layer]]
        turned = torch.addcmul(turning * cosine, turning.roll(head_dim // 2, -1), sine).to(qkv.dtype)
        # The cache holds finite numbers only: what a diseased request leaves in a page must not reach the next one.
        keys, values = turned[:, heads:].flatten(1), qkv[:, self._query_width + self._key_width :]
        self._cache.write(layer, self._step.groups[self._groups[layer]].write_slots, keys, values)
        return self._cache.queries(turned[:, :heads])

    def place(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write keys and values that are rotated already; return queries as attention takes them."""
        self._cache.write(layer, self._step.groups[self._groups[layer]].write_slots, keys, values)
        return self._cache.queries(queries.view(queries.shape[0], -1, self._architecture.head_dim))

    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged cache."""
        part = self._step.groups[self._groups[layer]]
        if part.singles is not None and not part.spans:
            found = singles_attention(self._cache, layer, queries, part.singles, self._architecture)
            return torch.empty_like(found).index_copy_(0, part.singles.rows, found)
        out = queries.new_empty(queries.shape[0], self._query_width)
        if part.singles is not None:
            found = singles_attention(self._cache, layer, queries, part.singles, self._architecture)
            out.index_copy_(0, part.singles.rows, found)
        for span in part.spans:
            rows = slice(span.row, span.row + span.length)
            out[rows] = span_attention(self._cache, layer, queries[rows], span, self._architecture)
        return out

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """activation(first half) * second half."""
        gate, up = gate_up.chunk(2, -1)
        if self._architecture.activation == "silu":
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh") * up

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head."""
        assert self._rows is not None
        normed, _ = self.add_norm(x.index_select(0, self._rows), residual.index_select(0, self._rows), weight)
        return self.linear(normed, head)

    def sample(self, logits: torch.Tensor, sampler: Sampler) -> Drawn:
        """Sample row by row."""
        return sample(logits, sampler)
