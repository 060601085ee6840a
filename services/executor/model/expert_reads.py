"""How many experts' weights steps have read, of all layers: what a mixture costs in memory traffic."""

import torch

_WRAP = 1 << 32


class ExpertsRead:
    """A count that is kept where steps are computed. total: int32 [1], from the start on; it wraps."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.total = torch.zeros(1, dtype=torch.int32, device=device)

    def add(self, counts: torch.Tensor) -> None:
        """Count a layer's experts that have rows; counts [experts]."""
        self.total.add_((counts > 0).sum())


def difference(later: int, earlier: int) -> int:
    """What was read between two totals."""
    return (later - earlier) % _WRAP
