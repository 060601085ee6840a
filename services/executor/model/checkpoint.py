"""A model folder's tensors by name, read from safetensors through the page cache, whole or in shards."""

from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from noria.shared.errors import UserError
from noria.shared.models import BLOCK_BYTES, BLOCKS

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class Blocks(msgspec.Struct, frozen=True):
    """A weight as a GGUF file has it: uint8 [outputs, bytes], whose kind is one of BLOCK_BYTES."""

    kind: str
    rows: torch.Tensor


class Checkpoint:
    """Opens a folder's shards. Raises UserError when they are missing or damaged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = {_SINGLE}
        try:
            if (folder / _INDEX).is_file():
                index = msgspec.json.decode((folder / _INDEX).read_bytes(), type=_Index)
                names = set(index.weight_map.values())
            shards = [safe_open(str(folder / name), framework="pt") for name in sorted(names)]
            blocks = [safe_open(str(folder / BLOCKS), framework="pt")] if (folder / BLOCKS).is_file() else []
        except (OSError, SafetensorError, msgspec.DecodeError) as error:
            raise UserError(
                f"cannot read the weights in {folder}: {error}; remove the folder and pull the model again, or choose another"
            ) from error
        self._owner = {key: shard for shard in shards for key in shard.keys()}  # type: ignore[no-untyped-call]  # noqa: SIM118 - not a mapping
        self._blocks = {key: shard for shard in blocks for key in shard.keys()}  # type: ignore[no-untyped-call]  # noqa: SIM118 - not a mapping

    def __contains__(self, name: str) -> bool:
        return name in self._owner

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

    def blocks(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        """A weight as the GGUF file had it, where it is kept so."""
        kind = self.block_kind(name, shape)
        if kind is None:
            return None
        return Blocks(kind, self._blocks[name].get_tensor(name))  # type: ignore[no-untyped-call]  # a native class
