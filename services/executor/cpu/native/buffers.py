"""Tensors that the native operations compute in, kept from step to step."""

import torch


class ScratchTensors:
    """One tensor for each name and width, with as many rows as the last step had."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, int], torch.Tensor] = {}
        self._views: dict[tuple[str, int], torch.Tensor] = {}

    def of(self, name: str, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor [rows, width]."""
        key = name, width
        view = self._views.get(key)
        if view is None or view.shape[0] != rows:
            memory = self._memory.get(key)
            if memory is None or memory.shape[0] < rows:
                memory = self._memory[key] = torch.empty(rows, width, dtype=dtype)
            view = self._views[key] = memory[:rows]
        return view


class Norms:
    """Weights of norms in float32, as the kernels take them."""

    def __init__(self) -> None:
        self._converted: dict[int, torch.Tensor] = {}

    def address(self, weight: torch.Tensor) -> int:
        """Address of a weight, or of a copy that is made once."""
        at = weight.data_ptr()
        if weight.dtype == torch.float32:
            return at
        if at not in self._converted:
            self._converted[at] = weight.float()
        return self._converted[at].data_ptr()
