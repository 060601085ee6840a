"""int8 products of weights that a GGUF file had in blocks: the file's numbers, not others near them."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from executor.numerics.int8_scheme import quantised
from gguf import GGMLQuantizationType, dequantize, quantize
from numpy.typing import NDArray
from safetensors.torch import save_file

from noria.services.executor.cpu.native.library import levels, open_kernels
from noria.services.executor.cpu.native.linear import (
    BLOCK_TYPES,
    INT4_OFFSETS,
    INT8,
    INT8_OFFSETS,
    NativeLinear,
    NativeLinearFactory,
)
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.linear_layers import WeightMatrix
from noria.services.executor.model.packed_weights import PackedWeights
from noria.shared.errors import UserError
from noria.shared.model.model_folder import BLOCK_BYTES, BLOCKS

KINDS = tuple(BLOCK_BYTES)
INPUTS = 160
ROWS = 37

pytestmark = pytest.mark.skipif(not levels(), reason="the kernels are not built")


def folder_of(folder: Path, kinds: tuple[str, ...], outputs: int = 45) -> tuple[WeightMatrix, torch.Tensor]:
    """One matrix whose parts were kept in blocks of such kinds (float: in none), and its weights in float32."""
    weights: dict[str, torch.Tensor] = {}
    blocks: dict[str, torch.Tensor] = {}
    for index, kind in enumerate(kinds):
        made = np.random.default_rng(index).standard_normal((outputs + index, INPUTS), dtype=np.float32) + 0.1
        if kind != "float":
            given = GGMLQuantizationType[kind]
            blocks[f"{index}.weight"] = torch.from_numpy(quantize(made, given))
            made = dequantize(blocks[f"{index}.weight"].numpy(), given)
        weights[f"{index}.weight"] = torch.from_numpy(made)
    save_file(weights, folder / "model.safetensors")
    save_file(blocks, folder / BLOCKS)
    parts = tuple((str(index), outputs + index) for index in range(len(kinds)))
    return WeightMatrix(Checkpoint(folder), parts, INPUTS), torch.cat(list(weights.values()))


def product_of(
    matrix: WeightMatrix, level: str = "auto", dtype: torch.dtype = torch.float32, threads: int = 2
) -> NativeLinear:
    return NativeLinearFactory(open_kernels(level), dtype, "int8", PackedWeights(), threads).linear(matrix, ROWS)


def unpacked(product: NativeLinear) -> NDArray[np.float32]:
    """The weights [outputs, inputs] that packed bytes stand for; their layout is that of api.h."""
    kind = product._arguments.type
    weights, group = {INT8: (1024, 1152), INT8_OFFSETS: (1024, 1216), INT4_OFFSETS: (512, 704)}[kind]
    size = (product.outputs + 31) // 32 * (INPUTS // 32) * group
    packed = np.frombuffer(ctypes.string_at(product._arguments.weights, size), np.uint8)
    packed = packed.reshape(-1, INPUTS // 32, group)
    numbers = packed[..., :weights].reshape(*packed.shape[:2], -1, 32, 4)
    if kind == INT4_OFFSETS:
        numbers = np.stack((numbers & 15, numbers >> 4), 3).reshape(*packed.shape[:2], 8, 32, 4)
    numbers = numbers.view(np.int8).transpose(0, 3, 1, 2, 4).reshape(-1, INPUTS // 32, 32).astype(np.float32)

    def column(start: int, kind: type[np.int16 | np.float16]) -> NDArray[np.float32]:
        found = np.frombuffer(packed[..., start : start + 64].tobytes(), kind).reshape(*packed.shape[:2], 32)
        return found.transpose(0, 2, 1).reshape(-1, INPUTS // 32, 1).astype(np.float32)

    assert np.array_equal(column(weights + 64, np.int16), numbers.sum(-1, keepdims=True))
    values = column(weights, np.float16) * numbers
    if kind != INT8:
        values += column(weights + 128, np.float16)
    return values.reshape(-1, INPUTS)[: product.outputs]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(ROWS, INPUTS, generator=torch.Generator().manual_seed(2)) + 0.3).to(dtype)


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_are_the_files_numbers_bit_for_bit(tmp_path: Path, level: str, kind: str) -> None:
    matrix, weights = folder_of(tmp_path, (kind,))
    assert np.array_equal(unpacked(product_of(matrix, level)), weights.numpy())


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_files_numbers(tmp_path: Path, level: str, dtype: torch.dtype, kind: str) -> None:
    matrix, weights = folder_of(tmp_path, (kind,))
    x, out = numbers(dtype), torch.empty(ROWS, len(weights))
    product_of(matrix, level, dtype).into(x, out)
    exact = quantised(x, symmetric=False) @ weights.double().T
    assert (out.double() - exact).abs().max() <= 2e-5 * max(1.0, float(exact.abs().max()))
    plain = x.double() @ weights.double().T
    assert (out.double() - plain).norm() <= 0.01 * plain.norm()


@pytest.mark.parametrize("kinds", [("Q8_0", "Q4_0"), ("Q4_0", "Q4_1", "Q8_0"), ("float", "Q4_1"), ("Q8_0", "float")])
def test_parts_of_one_product_may_be_of_different_kinds(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    matrix, weights = folder_of(tmp_path, kinds)
    found, start = unpacked(product_of(matrix)), 0
    for kind, (_, outputs) in zip(kinds, matrix.parts, strict=True):
        part = weights[start : start + outputs]
        if kind == "float":
            part = quantised(part, symmetric=True).float()
        assert np.array_equal(found[start : start + outputs], part.numpy()), kind
        start += outputs


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_four_bits_take_half_the_room_and_give_the_same_bits_as_eight(tmp_path: Path, level: str, kind: str) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "among").mkdir()
    four = product_of(folder_of(tmp_path / "alone", (kind,))[0], level)
    eight = product_of(folder_of(tmp_path / "among", (kind, "Q5_1"))[0], level)
    assert (four._arguments.type, eight._arguments.type) == (INT4_OFFSETS, INT8_OFFSETS)
    assert (four._arrays[0].nbytes, eight._arrays[0].nbytes) == (2 * 5 * 704, 3 * 5 * 1216)
    x = numbers(torch.float32)
    found, expected = four(x), eight(x)[:, : four.outputs]
    if kind == "Q4_1":
        assert torch.equal(found, expected)
    else:
        # Numbers below zero are kept as numbers from zero on and an offset: other roundings of the same sum.
        assert torch.allclose(found, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("kinds", [("Q4_1", "Q8_0"), ("Q4_0", "Q4_1")])
def test_offsets_give_a_row_the_same_bits_among_any_others_on_any_number_of_threads(
    tmp_path: Path, level: str, kinds: tuple[str, ...]
) -> None:
    matrix, weights = folder_of(tmp_path, kinds)
    x, whole = numbers(torch.bfloat16), torch.empty(ROWS, len(weights))
    products = [product_of(matrix, level, torch.bfloat16, threads) for threads in (1, 2)]
    products[1].into(x, whole)
    for rows in range(1, ROWS + 1):
        first = (7 * rows) % (ROWS - rows + 1)
        part = torch.empty(rows, len(weights))
        products[rows % 2].into(x[first : first + rows].contiguous(), part)
        assert torch.equal(part, whole[first : first + rows]), rows


def test_a_diseased_row_does_not_touch_the_others(tmp_path: Path) -> None:
    product = product_of(folder_of(tmp_path, ("Q4_1",))[0])
    x = numbers(torch.float32)
    healthy = product(x)
    x[7, 5], x[8] = torch.nan, torch.inf
    found = product(x)
    assert not found[7].isfinite().any() and not found[8].isfinite().any()
    assert torch.equal(found[:7], healthy[:7]) and torch.equal(found[9:], healthy[9:])


def test_products_that_are_kept_exact_and_those_of_other_precisions_leave_blocks_alone(tmp_path: Path) -> None:
    matrix, weights = folder_of(tmp_path, ("Q4_1",))
    x = numbers(torch.float32)
    for quantization, exact in (("int8", True), ("none", False)):
        products = NativeLinearFactory(open_kernels(), torch.float32, quantization, PackedWeights(), 1)
        assert torch.allclose(products.linear(matrix, ROWS, exact=exact)(x), x @ weights.T, atol=1e-4)


def test_blocks_of_another_shape_are_an_error_that_names_them(tmp_path: Path) -> None:
    matrix, _ = folder_of(tmp_path, ("Q8_0",))
    save_file({"0.weight": torch.zeros(45, 101, dtype=torch.uint8)}, tmp_path / BLOCKS)
    with pytest.raises(UserError, match=rf"0\.weight in .*{BLOCKS} has 45 rows of 101 bytes"):
        product_of(WeightMatrix(Checkpoint(tmp_path), matrix.parts, INPUTS))


def test_a_damaged_file_of_blocks_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    folder_of(tmp_path, ("Q8_0",))
    (tmp_path / BLOCKS).write_bytes(b"\x10" + b"\0" * 40)
    with pytest.raises(UserError, match=r"cannot read the weights in .* pull the model again"):
        Checkpoint(tmp_path)


def test_every_kind_that_is_kept_is_one_that_kernels_read() -> None:
    assert set(BLOCK_BYTES) == set(BLOCK_TYPES)
    assert len(set(BLOCK_BYTES.values())) == len(BLOCK_BYTES)
