"""The interface of a model to the processor's engine: our own decoder, or one that transformers computes."""

from typing import Protocol

import torch

from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.linear_layers import LinearFactory
from noria.services.executor.model.operations import CpuOperations
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers


class CausalLM(Protocol):
    """A model's weights and forward pass."""

    @property
    def architecture(self) -> Architecture:
        """The parameters by which the cache is laid out."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation."""

    @property
    def linear_factory(self) -> LinearFactory:
        """What made the linear layers; with native ones their kernels compute the other operations too."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row has the same bits in any batch, as far as is known."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes that a step's largest matrix product takes beside its input and output."""

    def logits(self, operations: CpuOperations, batch: Batch, rows: Integers | None) -> torch.Tensor | None:
        """Run a step that the operations have begun.

        Returns float32 logits [rows, vocabulary] of some query rows, or None for None.
        """
