"""A model on its device: computes one step from its input arrays to its output arrays.

Everything here only queues work; nothing looks at a number.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from noria.services.executor.cuda.device.cache_pool import DeviceCachePool
from noria.services.executor.cuda.device.step_inputs import StepInputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs
from noria.services.executor.cuda.layout.step_sizes import StepSizes
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.model.operations import StepOperations
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits


class DeviceOperations(StepOperations, Protocol):
    """The operations on a device over one step, whose arrays are there. None waits for the device."""

    @property
    def name(self) -> str:
        """What computes, as shown to the user."""

    @property
    def tile_tokens(self) -> int:
        """Query tokens that a tile of attention takes."""

    @property
    def kept(self) -> Sequence[torch.Tensor]:
        """What stays on the device from step to step beside the cache: tokens sampled last, the count of experts."""

    def plan(self, batch: Batch, sizes: StepSizes) -> None:
        """On the host, before a step of these sizes is queued or replayed: what is not in its inputs, and in no graph."""

    def take(self, step: StepInputs) -> None:
        """Begin a step over these inputs, whatever they hold when it runs. Tokens that it carries are found in `kept`."""

    def sample(self, logits: torch.Tensor, step: StepInputs, out: StepOutputs) -> None:
        """Sample one token per row of float32 logits [rows, vocabulary], which are overwritten, and keep it for its slot."""


class ModelOnDevice(msgspec.Struct, frozen=True):
    """A model on its device before its cache has a size. store: the cache's dtype."""

    decoder: Decoder
    architecture: Architecture
    dtype: torch.dtype
    store: torch.dtype


class DeviceModel(Protocol):
    """A forward pass made of operations alone, such as `Decoder`."""

    def forward(self, operations: StepOperations, *, sampled: bool) -> torch.Tensor | None:
        """Run the step that was begun; returns float32 logits of its sampled rows if it has any."""


class DeviceModelExecutor:
    """A model, its cache and its operations; methods only queue work."""

    def __init__(
        self, model: DeviceModel, shape: ExecutorLimits, pool: DeviceCachePool, operations: DeviceOperations
    ) -> None:
        self.shape = shape
        self.pool = pool
        self.operations = operations
        self._model = model

    def plan(self, batch: Batch, sizes: StepSizes) -> None:
        """Prepare on the host what the operations need before a step."""
        self.operations.plan(batch, sizes)

    def forward(self, step: StepInputs) -> torch.Tensor | None:
        """The logits of a step's sampled rows, if it has any."""
        with torch.inference_mode():
            self.operations.take(step)
            return self._model.forward(self.operations, sampled=step.sizes.samples > 0)

    def sample(self, step: StepInputs, logits: torch.Tensor, out: StepOutputs) -> None:
        """Sample a step's rows, for its output and for the next step."""
        with torch.inference_mode():
            self.operations.sample(logits, step, out)
