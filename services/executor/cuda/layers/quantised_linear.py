"""Linear layers with weights in eight bits, by torchao.

int8: integers with a scale for each output, multiplied in the model's dtype. fp8: e4m3 with a scale for each output; where
the GPU multiplies such numbers, inputs are rounded to them too, with a scale for each row.
"""

from typing import Final, Protocol, runtime_checkable

import torch
from torchao.quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int8WeightOnlyConfig,
    PerRow,
    quantize_,
)

_MULTIPLIES_FP8: Final = (8, 9)
"""NVIDIA's compute capability from which on products of fp8 are its own."""


@runtime_checkable
class _Wrapped(Protocol):
    """A tensor subclass that is made of plain tensors."""

    def __tensor_flatten__(self) -> tuple[list[str], object]:
        """The names of its tensors."""


class QuantisedLinear:
    """y = x @ weight.T + bias with a weight that is quantised as it is made; kind: int8 or fp8."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, kind: str) -> None:
        self.outputs, self.inputs = weight.shape
        self._dtype = weight.dtype
        self._linear = torch.nn.Linear(self.inputs, self.outputs, bias=bias is not None, device="meta")
        self._linear.weight = torch.nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            self._linear.bias = torch.nn.Parameter(bias, requires_grad=False)
        quantize_(self._linear, _config(kind, weight.device))
        kept: object = self._linear.weight
        assert isinstance(kept, _Wrapped)
        names, _ = kept.__tensor_flatten__()
        self.nbytes = sum(getattr(kept, name).nbytes for name in names)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs]."""
        found: torch.Tensor = self._linear(x.to(self._dtype))
        return found

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute y into `out` [rows, outputs]."""
        out.copy_(self(x))


def _config(
    kind: str, device: torch.device
) -> Int8WeightOnlyConfig | Float8WeightOnlyConfig | Float8DynamicActivationFloat8WeightConfig:
    if kind == "int8":
        return Int8WeightOnlyConfig()
    if device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability() >= _MULTIPLIES_FP8:
        return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    return Float8WeightOnlyConfig()
