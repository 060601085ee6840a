"""What a lane asks of the operations that compute on its device."""

from collections.abc import Sequence
from typing import Protocol

import torch

from noria.services.executor.cuda.device.step_inputs import Inputs
from noria.services.executor.cuda.device.step_outputs import Outputs
from noria.services.executor.cuda.layout.step_sizes import Sizes
from noria.services.executor.model.operations import StepOperations
from noria.services.executor.plan.batch import Batch


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
