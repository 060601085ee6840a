"""What a decoder is made of. Each implementation computes the same functions; one is chosen per process, never per step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from noria.services.executor.model.expert_reads import ExpertsRead
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.sampling_metadata import Drawn, Sampler


class Mlp(Protocol):
    """A layer's feed-forward part: dense, or a mixture of experts (`mlp.py`)."""

    def __call__(self, x: torch.Tensor, operations: "StepOperations") -> torch.Tensor:
        """Return [T, hidden]."""


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


class StepOperations(Protocol):
    """The functions of a step that has begun, one step at a time: what a decoder is made of, wherever it computes.

    Tensors are [query tokens, features] and live until the step's end. What flows between two products is in the model's
    dtype; an implementation may keep the residual stream, and what is added to it, in float32.
    """

    @property
    def experts(self) -> ExpertsRead:
        """How many experts were read, noted by mixtures."""

    def embedded(self, table: torch.Tensor, scale: float) -> torch.Tensor:
        """The tokens' rows of an embedding [vocabulary, hidden] times a number: what begins the residual stream."""

    def layers(self, layers: Sequence[Layer], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All layers of a model: what `in_turn` says, perhaps in fewer calls."""

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Matrix product."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm of what is about to be added to the residual stream."""

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
        """activation(first half) * second half."""

    def logits(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, head: Linear) -> torch.Tensor:
        """Float32 products of the head with the normed sums of the step's rows: [rows, vocabulary]."""


class Operations(StepOperations, Protocol):
    """Those of a processor, whose steps are numpy arrays."""

    def begin(self, batch: Batch, rows: Integers | None) -> None:
        """Lay out a step: its positions, the pages that it writes and reads, and the query rows that logits are asked of.

        All its token ids are known.
        """

    def sample(self, logits: torch.Tensor, sampler: Sampler) -> Drawn:
        """Sample one token per row of float32 logits [rows, vocabulary], which are overwritten; see sampling.py."""


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
