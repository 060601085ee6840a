"""What a decoder is made of. Each implementation computes the same functions; one is chosen per process, never per step."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from noria.services.executor.model.expert_reads import ExpertsRead
from noria.services.executor.model.linear_layers import Linear
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.sampling_metadata import Drawn, Sampler

if TYPE_CHECKING:  # a layer is made of these operations
    from noria.services.executor.model.decoder_layer import Layer


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

    def layers(self, layers: Sequence["Layer"], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
