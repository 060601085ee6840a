"""Reads a model folder's tensors by name from safetensors, in one file or in shards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from noria.shared.errors import UserError
from noria.shared.model.model_folder import BLOCK_BYTES, BLOCKS
from noria.shared.model.weight_files import TensorShape, check_tensors, damaged, other_files, read_header, read_tensors

_NUMBERS: Final = frozenset({"F64", "F32", "F16", "BF16"})
"""Kinds of numbers that are weights as they stand; quantised ones mean nothing without their scales."""


class GgufBlocks(msgspec.Struct, frozen=True):
    """A weight in the blocks of a GGUF file: uint8 [outputs, bytes]; its kind is one of BLOCK_BYTES."""

    kind: str
    rows: torch.Tensor


class Checkpoint:
    """A model folder's tensors. Raises UserError when shards are missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found = read_tensors(folder)
        blocks = read_header(folder / BLOCKS) if (folder / BLOCKS).is_file() else {}
        try:
            shards = {
                name: safe_open(str(folder / name), framework="pt")
                for name in {each.file for each in (*self._found.values(), *blocks.values())}
            }
        except (OSError, SafetensorError) as error:
            raise damaged(folder, str(error)) from error
        self._owner = {name: shards[tensor.file] for name, tensor in self._found.items()}
        self._blocks = {name: shards[tensor.file] for name, tensor in blocks.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def require(self, needed: Mapping[str, TensorShape]) -> tuple[str, ...]:
        """Check that all of these tensors are there; returns the names of tensors and files that are not among them.

        Raises UserError naming what is missing, of another shape, or not of floating-point numbers.
        """
        where = f"the model folder {self._folder}"
        found: dict[str, TensorShape] = dict.fromkeys(other_files(self._folder), ())  # named like tensors
        found |= {name: tensor.shape for name, tensor in self._found.items()}
        unused = check_tensors(where, needed, found)
        for name in needed:
            if (kind := self._found[name].dtype) not in _NUMBERS:
                raise UserError(
                    f"{name} in {where} is of kind {kind}, expected one of {', '.join(sorted(_NUMBERS))}; quantised "
                    "folders are not served: choose the model in floating point, or a GGUF file"
                )
        return unused

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """One tensor in the given dtype, or its own where None. Raises UserError when it is missing or of another shape."""
        if name not in self._owner:
            raise UserError(f"the weights in {self._folder} lack {name}")
        tensor: torch.Tensor = self._owner[name].get_tensor(name)  # type: ignore[no-untyped-call]  # a native class
        if tuple(tensor.shape) != shape:
            raise UserError(f"{name} in {self._folder} has shape {tuple(tensor.shape)}, expected {shape}")
        return tensor if dtype is None else tensor.to(dtype)

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """The kind of blocks that a weight of that shape is also kept in, if any. Raises UserError when they are others."""
        if name not in self._blocks:
            return None
        rows, size = self._blocks[name].get_slice(name).get_shape()  # type: ignore[no-untyped-call]  # a native class
        for kind, block_bytes in BLOCK_BYTES.items():
            if rows == shape[0] and size * 32 == block_bytes * shape[1]:
                return kind
        raise UserError(f"{name} in {self._folder / BLOCKS} has {rows} rows of {size} bytes, which are not {shape}")

    def blocks(self, name: str, shape: tuple[int, int]) -> GgufBlocks | None:
        """A weight in its GGUF blocks; None where it has none."""
        kind = self.block_kind(name, shape)
        if kind is None:
            return None
        return GgufBlocks(kind, self._blocks[name].get_tensor(name))  # type: ignore[no-untyped-call]  # a native class
