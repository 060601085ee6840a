"""A model on its device: what one step computes, from the arrays of its input to those of its output.

Everything here only queues work; nothing looks at a number.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from noria.services.executor.cuda.device.cache_pool import Pool
from noria.services.executor.cuda.device.step_inputs import Inputs
from noria.services.executor.cuda.device.step_outputs import Outputs
from noria.services.executor.cuda.layout.step_sizes import Sizes
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.model.operations import StepOperations
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import Shape


class DeviceOperations(StepOperations, Protocol):
    """The functions of a step whose arrays are on the device. None of them waits for it."""

    @property
    def name(self) -> str:
        """What computes, for a person."""

    @property
    def tile_tokens(self) -> int:
        """Query tokens that a tile of attention takes."""

    @property
    def kept(self) -> Sequence[torch.Tensor]:
        """What stays on the device from step to step beside the cache: tokens sampled last, the count of experts."""

    def plan(self, batch: Batch, sizes: Sizes) -> None:
        """On the host, before a step of these sizes is queued or replayed: what is not in its inputs, and in no graph."""

    def take(self, step: Inputs) -> None:
        """The step that follows, of whatever its inputs hold when it is run. Tokens that it carries are found in `kept`."""

    def sample(self, logits: torch.Tensor, step: Inputs, out: Outputs) -> None:
        """Sample one token per row of float32 logits [rows, vocabulary], which are overwritten, and keep it for its slot."""


class Made(msgspec.Struct, frozen=True):
    """A model on its device, before its cache has a size. store: the cache's dtype."""

    decoder: Decoder
    architecture: Architecture
    dtype: torch.dtype
    store: torch.dtype


class DeviceModel(Protocol):
    """A forward pass made of operations alone: `Decoder`."""

    def forward(self, operations: StepOperations, *, sampled: bool) -> torch.Tensor | None:
        """Run the step that was begun; returns float32 logits of its sampled rows if it has any."""


class DeviceEngine:
    """Model, cache and operations."""

    def __init__(self, model: DeviceModel, shape: Shape, pool: Pool, operations: DeviceOperations) -> None:
        self.shape = shape
        self.pool = pool
        self.operations = operations
        self._model = model

    def plan(self, batch: Batch, sizes: Sizes) -> None:
        """Before a step, on the host."""
        self.operations.plan(batch, sizes)

    def forward(self, step: Inputs) -> torch.Tensor | None:
        """The logits of a step's sampled rows, if it has any."""
        with torch.inference_mode():
            self.operations.take(step)
            return self._model.forward(self.operations, sampled=step.sizes.samples > 0)

    def sample(self, step: Inputs, logits: torch.Tensor, out: Outputs) -> None:
        """Sample a step's rows, for its output and for the next step."""
        with torch.inference_mode():
            self.operations.sample(logits, step, out)
