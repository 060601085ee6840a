"""What a lane asks of the operations that compute on its device."""

from typing import Protocol

import torch

from noria.services.executor.batch import Batch
from noria.services.executor.device.inputs import Inputs, SampledInputs
from noria.services.executor.device.outputs import Outputs
from noria.services.executor.operations import StepOperations


class DeviceOperations(StepOperations, Protocol):
    """The functions of a step whose arrays are on the device. None of them waits for it."""

    @property
    def name(self) -> str:
        """What computes, for a person."""

    @property
    def tile_tokens(self) -> int:
        """Query tokens that a tile of attention takes."""

    def plan(self, batch: Batch, step: Inputs) -> None:
        """What has to be done on the host before each run of a step, recorded or not; it is no part of a graph."""

    def begin(self, step: Inputs) -> None:
        """Lay out a step whose token ids are all known. Part of a graph, as everything that follows."""

    def sample(self, logits: torch.Tensor, step: SampledInputs, out: Outputs) -> None:
        """Sample one token per row of float32 logits [rows, vocabulary], which are overwritten."""
