"""The operations that a decoder is made of, and a layer made of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from noria.services.executor.model.expert_reads import ExpertReads
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata


class Mlp(Protocol):
    """A layer's feed-forward part: dense, or a mixture of experts (`mlp.py`)."""

    def __call__(self, x: torch.Tensor, operations: "StepOperations") -> torch.Tensor:
        """Return [T, hidden]."""


@dataclass(slots=True, eq=False)
class DecoderLayer:
    """One layer's weights. head_norms: of queries and keys, where the family has them.

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


class StepOperations(Protocol):
    """The operations of a decoder over one step that has begun, wherever it computes.

    Tensors are [query tokens, features] and live until the step's end. What flows between two products is in the model's
    dtype; an implementation may keep the residual stream, and what is added to it, in float32.
    """

    @property
    def experts(self) -> ExpertReads:
        """The count of experts read, to which mixtures add."""

    def embedded(self, table: torch.Tensor, scale: float) -> torch.Tensor:
        """The tokens' rows of an embedding [vocabulary, hidden] times a number: what begins the residual stream."""

    def layers(self, layers: Sequence[DecoderLayer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute all layers as `in_turn` does, perhaps in fewer calls."""

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Compute a linear layer of x [T, inputs]."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of x, which is about to be added to the residual stream."""

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual stream; return (RMS-normed sum, sum)."""

    def rotate_write(
        self, layer: int, qkv: torch.Tensor, head_norms: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        """Norm the heads where the family does, rotate queries and keys, write the cache; return queries [T, heads, d]."""

    def place(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Write keys and values [T, kv heads * d] that are rotated already; return queries as attention takes them."""

    def attention(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Causal attention over the paged cache, this step's keys included."""

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """The gated activation: activation(first half) * second half, [T, inner]."""

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head with the normed sums of the step's rows: [rows, vocabulary]."""


class CpuOperations(StepOperations, Protocol):
    """The operations on a processor, whose steps are numpy arrays."""

    def begin(self, batch: Batch, rows: Integers | None) -> None:
        """Lay out a step: its positions, the pages that it writes and reads, and the query rows that logits are asked of.

        All its token ids are known.
        """

    def sample(self, logits: torch.Tensor, sampler: SamplingMetadata) -> SamplerOutput:
        """Sample one token per row of float32 logits [rows, vocabulary], which are overwritten; see cpu/reference_sampling.py."""


def composed(
    operations: StepOperations, index: int, layer: DecoderLayer, x: torch.Tensor, residual: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute one layer, operation by operation. Returns (what is to be added to the residual stream next, that stream)."""
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


def in_turn(
    operations: StepOperations, layers: Sequence[DecoderLayer], x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute all layers, operation by operation. x begins the residual stream; returns as `composed` does."""
    residual: torch.Tensor | None = None
    for index, layer in enumerate(layers):
        x, residual = composed(operations, index, layer, x, residual)
    assert residual is not None
    return x, residual
