"""What a decoder is made of. Each implementation computes the same functions; one is chosen per process, never per step."""

from typing import Protocol

import torch

from noria.services.executor.linear import Linear
from noria.services.executor.step import Step


class Operations(Protocol):
    """Tensors are [query tokens, features] in the model's dtype unless said otherwise."""

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Matrix product."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm."""

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add x to the residual stream; return (RMS-normed sum, sum)."""

    def rotate_write(
        self, layer: int, qkv: torch.Tensor, head_norms: tuple[torch.Tensor, torch.Tensor] | None, step: Step
    ) -> torch.Tensor:
        """Norm the heads where the family does, rotate queries and keys, write the cache; return queries [T, heads, d]."""

    def attention(self, layer: int, queries: torch.Tensor, step: Step) -> torch.Tensor:
        """Causal attention over the paged cache, this step's keys included."""

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """activation(first half) * second half."""
