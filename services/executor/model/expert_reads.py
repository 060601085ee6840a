"""Counts how many experts' weights the steps read, over all layers."""

import torch

_WRAP = 1 << 32


class ExpertReads:
    """A count on the device that computes. total: int32 [1], since the start; it wraps."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.total = torch.zeros(1, dtype=torch.int32, device=device)

    def add(self, counts: torch.Tensor) -> None:
        """Count a layer's experts that have rows; counts [experts]."""
        self.total.add_((counts > 0).sum())


def difference(later: int, earlier: int) -> int:
    """How much was read between two totals, of which the later may have wrapped."""
    return (later - earlier) % _WRAP
