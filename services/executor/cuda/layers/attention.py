"""The interface of attention on a device, and the tiles in which our kernels take it."""

from typing import Final, Protocol

import torch

from noria.services.executor.cuda.device.step_inputs import StepInputs
from noria.services.executor.cuda.layout.step_sizes import StepSizes
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.plan.batch import Batch

TILE_ROWS: Final = 64
"""Rows of a tile: query tokens times the query heads that share a key-value head."""


class DeviceAttention(Protocol):
    """Causal attention over the paged cache. `name`: as shown to the user."""

    name: str

    def plan(self, batch: Batch, sizes: StepSizes) -> None:
        """On the host, before a step of these sizes is queued or replayed: what is not in its inputs."""

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor, step: StepInputs) -> None:
        """Queue a layer's attention of queries [T, heads * head size] into out; rows of no slice are left as they are."""


def tile_rows(architecture: Architecture) -> int:
    """Rows of a tile: room for one token at least."""
    return max(TILE_ROWS, power_of_two(architecture.query_group))


def tile_tokens(architecture: Architecture) -> int:
    """Query tokens of a tile."""
    return tile_rows(architecture) // architecture.query_group


def power_of_two(count: int) -> int:
    """The least power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
