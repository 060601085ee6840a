"""What the engine asks of a model: the decoder of our own, or one that transformers computes."""

from typing import Protocol

import torch

from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.linear_layers import Products
from noria.services.executor.model.operations import Operations
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Integers


class Model(Protocol):
    """Weights and the forward pass of a step."""

    @property
    def architecture(self) -> Architecture:
        """What the cache is laid out by."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what is computed."""

    @property
    def products(self) -> Products:
        """The kind of matrix products; native ones have their kernels do everything else too that they can."""

    @property
    def steady(self) -> bool:
        """Whether a row has the same bits in any batch, as far as is known."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""

    @property
    def scratch_bytes(self) -> int:
        """What a step's largest product takes beside its input and output."""

    def logits(self, operations: Operations, batch: Batch, rows: Integers | None) -> torch.Tensor | None:
        """Run a step that the operations have begun.

        Returns float32 logits [rows, vocabulary] of some query rows, or None for None.
        """
