"""Linear layers in plain PyTorch with weights packed once; a row has the same bits whatever rows stand beside it.

oneDNN packs a weight into the layout that its kernel wants, which is also the fastest way at every size measured. Which
kernel runs depends on the number of rows, and with it the order of summation: products over 1536 inputs differed
between one row and several, those over 576 never. So each shape is probed when it is first loaded for the least number
of rows from which on a row's result no longer changes, and fewer rows are filled up to it (docs/decisions/0004).
Between there and a full batch rows are filled up to a few sizes.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch.nn import functional

from noria.services.executor.model.linear_layers import GroupedLinear, WeightMatrix

_LADDER: Final = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    12,
    15,
    16,
    17,
    24,
    31,
    32,
    33,
    48,
    64,
    65,
    96,
    128,
    129,
    200,
    256,
    512,
    1024,
)
_FLOORS: Final = (1, 2, 4, 8, 16, 32)
_COMPARED_ROWS: Final = 32
_EVERY_SIZE_ROWS: Final = 16
PART_INPUTS: Final = 512
"""Inputs that a float32 product adds up in one go."""


def computed_rows(rows: int, floor: int) -> int:
    """To how many rows `rows` are padded: at least `floor`, and four sizes per doubling above 16.

    oneDNN compiles and keeps a kernel for each number of rows and shape it meets: 2 ms and 0.6 MB each, measured.
    """
    rows = max(rows, floor)
    if rows <= _EVERY_SIZE_ROWS:
        return rows
    step = 1 << ((rows - 1).bit_length() - 3)
    return -(-rows // step) * step


class ReferenceLinear:
    """y = x @ weight.T + bias for x [rows, inputs]; `floor` is how many rows at least are computed.

    x may be of another dtype than the weight: it is converted first, and the result is of the weight's.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, floor: int) -> None:
        self.outputs, self.inputs = weight.shape
        self.floor = floor
        self._dtype = weight.dtype
        self._bias = bias
        self._packed = packable(weight)
        self._parts = [(slice(0, self.inputs), weight)]
        if self._packed:
            # oneDNN adds up all inputs one after the other, which in float32 costs a digit that MKL keeps: summed in
            # parts, logits of a 135M model are off by 6e-5 at most instead of 8e-5, against float64.
            parts = -(-self.inputs // PART_INPUTS) if weight.dtype == torch.float32 else 1
            size = -(-self.inputs // parts)
            places = [slice(start, min(start + size, self.inputs)) for start in range(0, self.inputs, size)]
            self._parts = [(place, _packed(weight[:, place].contiguous())) for place in places]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [rows, outputs]."""
        rows, x = x.shape[0], x.to(self._dtype)
        if (computed := computed_rows(rows, self.floor)) > rows:
            return self._product(functional.pad(x, (0, 0, 0, computed - rows)))[:rows]
        return self._product(x)

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Compute y into `out` [rows, outputs]."""
        out.copy_(self(x))

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if not self._packed:
            return functional.linear(x, self._parts[0][1], self._bias)
        if len(self._parts) == 1:
            return _packed_product(x, self._parts[0][1], self._bias)
        total = _packed_product(x[:, self._parts[0][0]].contiguous(), self._parts[0][1], self._bias)
        for place, part in self._parts[1:]:
            total += _packed_product(x[:, place].contiguous(), part, None)
        return total


class ReferenceLinearFactory:
    """Makes linear layers in plain PyTorch; logits are float32 products of float32 copies of the weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.nbytes = 0
        self._dtype = dtype
        self._floors = BatchInvarianceProbe()

    @property
    def batch_invariant(self) -> bool:
        """Whether every shape has a floor."""
        return self._floors.batch_invariant

    @property
    def groups(self) -> bool:
        """False: experts are computed one after the other, because the host knows which have rows."""
        return False

    def grouped(self, matrices: Sequence[WeightMatrix]) -> GroupedLinear:
        """Raises NotImplementedError: plain PyTorch has no grouped layers here."""
        raise NotImplementedError

    def scratch_bytes(self, rows_max: int) -> int:
        """0: the step memory counts it already."""
        del rows_max
        return 0

    def linear(
        self, matrix: WeightMatrix, rows_max: int, *, logits: bool = False, exact: bool = False
    ) -> ReferenceLinear:
        """A linear layer for at most rows_max rows."""
        del exact  # all are
        # Rounded to the model's dtype first: what is served is that model.
        weight, bias = matrix.weights(self._dtype), matrix.biases(self._dtype)
        if logits:
            weight, bias = weight.float(), None if bias is None else bias.float()
        self.nbytes += weight.nbytes
        return ReferenceLinear(weight, bias, self._floors.of(weight, rows_max))


class BatchInvarianceProbe:
    """Finds, once for each shape of weights, the fewest rows from which on a product gives every row the same bits in any batch."""

    def __init__(self) -> None:
        self.batch_invariant = True
        self._found: dict[tuple[torch.Size, torch.dtype, int], int] = {}

    def of(self, weight: torch.Tensor, rows_max: int) -> int:
        """The least rows from which on, up to rows_max, a row of x @ weight.T keeps its bits; 1 where there is none."""
        key = (weight.shape, weight.dtype, rows_max)
        if key not in self._found:
            floor = _probe(_telling(weight), rows_max)
            self.batch_invariant = self.batch_invariant and floor is not None
            self._found[key] = floor or 1
        return self._found[key]


def packable(weight: torch.Tensor) -> bool:
    """Whether oneDNN can pack this weight here."""
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def _packed(weight: torch.Tensor) -> torch.Tensor:
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 16)
    return packed


def _packed_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _telling(weight: torch.Tensor) -> torch.Tensor:
    """A weight of the same kind whose products show the order of summation.

    Rounding to bfloat16 hides almost every difference of float32 sums. Halves that cancel leave a small result of large
    terms, which shows it.
    """
    if weight.dtype == torch.float32:
        return weight
    half = weight[:, : weight.shape[1] // 2]
    return torch.cat((half, -half, weight[:, 2 * half.shape[1] :]), 1)


def _probe(weight: torch.Tensor, rows_max: int) -> int | None:
    rows = [count for count in _LADDER if count < rows_max] + [rows_max]
    half = torch.randn(rows_max, weight.shape[1] // 2, generator=torch.Generator().manual_seed(0))
    odd = torch.ones(rows_max, weight.shape[1] - 2 * half.shape[1])
    x = torch.cat((half, half.roll(1, 0) * 2**-9 + half, odd), 1).to(weight.dtype)
    product = ReferenceLinear(weight, None, 1)
    whole = product(x)
    same = {}
    for count in rows:
        starts = range(0, min(max(count, _COMPARED_ROWS), rows_max) - count + 1, count)
        found = torch.cat([product(x[start : start + count].contiguous()) for start in starts])
        same[count] = torch.equal(found, whole[: len(found)])
    return next((floor for floor in _FLOORS if all(same[count] for count in rows if count >= floor)), None)
