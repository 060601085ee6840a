"""Linear layers on a device, by the libraries that torch brings (cuBLAS, hipBLASLt)."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from noria.services.executor.cuda.layers.installed import installed
from noria.services.executor.model.linear_layers import Linear, WeightMatrix
from noria.shared.errors import UserError


class DeviceLinear:
    """y = x @ weight.T + bias. logits: y is float32, summed in float32, whatever the weights are of."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, *, logits: bool = False) -> None:
        self.outputs, self.inputs = weight.shape
        self._weight, self._bias = weight, bias
        self._logits = logits

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs]."""
        weight = self._weight
        if not self._logits or weight.dtype == torch.float32:
            return functional.linear(x.to(weight.dtype), weight, self._bias)
        if weight.is_cuda:
            # A copy of the weights in float32 would be read twice as slowly.
            y = torch.mm(x.to(weight.dtype), weight.t(), out_dtype=torch.float32)
        else:
            y = functional.linear(x.float(), weight.float())
        return y if self._bias is None else y + self._bias

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute y into `out` [rows, outputs]."""
        out.copy_(self(x))


class DeviceGroupedLinear:
    """Grouped linear layers of stacked weights [parts, outputs, inputs], by torch's grouped product."""

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights.transpose(1, 2)

    def __call__(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs]."""
        return functional.grouped_mm(x.to(self._weights.dtype), self._weights, offs=ends)


class DeviceLinearFactory:
    """Makes linear layers in one dtype on one device; their bits depend on the number of rows.

    quantization: none, int8 or fp8; experts are not quantised. Raises UserError where what does it is not installed.
    """

    batch_invariant = False

    def __init__(self, dtype: torch.dtype, device: torch.device, quantization: str = "none") -> None:
        if quantization != "none" and not installed("torchao"):
            raise UserError(
                f"executor.quantization {quantization} needs torchao on a GPU: pip install 'noria[torchao]', or choose none"
            )
        self.nbytes = 0
        self._quantization = quantization
        self._dtype = dtype
        self._device = device

    @property
    def groups(self) -> bool:
        """Whether torch's grouped product takes this dtype here."""
        return hasattr(functional, "grouped_mm") and (self._device.type == "cpu" or self._dtype == torch.bfloat16)

    def grouped(self, matrices: Sequence[WeightMatrix]) -> DeviceGroupedLinear:
        """Matrices of one shape as one product."""
        weights = torch.stack([each.weights(self._dtype) for each in matrices]).to(self._device)
        self.nbytes += weights.nbytes
        return DeviceGroupedLinear(weights)

    def scratch_bytes(self, rows_max: int) -> int:
        """0: the largest step is measured instead."""
        del rows_max
        return 0

    def linear(self, matrix: WeightMatrix, rows_max: int, *, logits: bool = False, exact: bool = False) -> Linear:
        """A linear layer; what gives logits, or routes, is never quantised."""
        del rows_max
        weight = matrix.weights(self._dtype).to(self._device)
        bias = matrix.biases(self._dtype)
        bias = None if bias is None else bias.to(self._device)
        if self._quantization == "none" or logits or exact:
            self.nbytes += weight.nbytes
            return DeviceLinear(weight, bias, logits=logits)
        from noria.services.executor.cuda.layers.quantised_linear import QuantisedLinear

        made = QuantisedLinear(weight, bias, self._quantization)
        self.nbytes += made.nbytes
        return made
