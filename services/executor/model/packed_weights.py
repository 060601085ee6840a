"""Keeps weights in the layout in which they are computed, in a file that the next start only maps.

The file is a magic line, the size of a JSON table, the table, and arrays at page boundaries. It is used when it was made
from these weights by this layout; an array whose checksum does not hold is made anew, and the file written again under
another name first. A folder that cannot be written, or a full disk, costs the next start its speed and nothing else.
"""

import contextlib
import hashlib
import math
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import torch

from noria.shared.model.model_folder import BLOCKS

LAYOUT: Final = 2
"""Raised whenever the same weights would be packed into other bytes."""

_MAGIC: Final = b"noria packed weights\n"
_PAGE: Final = 4096
_SAMPLES: Final = 64
_TABLE_BYTES_MAX: Final = 64 << 20
_DTYPES: Final = {str(each).removeprefix("torch."): each for each in (torch.float32, torch.bfloat16, torch.uint8)}


class _PackedArray(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    start: int
    checksum: int


class _PackedTable(msgspec.Struct, frozen=True):
    key: str
    file_bytes: int
    arrays: dict[str, _PackedArray]


def crc32(array: torch.Tensor) -> int:
    """The CRC-32 of a dense uint8 tensor."""
    return zlib.crc32(array.numpy().data)


class PackedWeights:
    """Packed arrays by name: mapped when the file has them, else made. Without a path nothing is kept.

    key: what identifies the weights and how they are packed; see `identity`.
    checksum: of a dense uint8 tensor. written: whether `keep` wrote the file.
    """

    def __init__(
        self, path: Path | None = None, key: str = "", checksum: Callable[[torch.Tensor], int] = crc32
    ) -> None:
        self._path = path
        self._key = key
        self._checksum = checksum
        self._arrays: dict[str, torch.Tensor] = {}
        self._made = 0
        self.written = False
        self._places: dict[str, _PackedArray] = {}
        self._bytes = torch.empty(0, dtype=torch.uint8)
        if path is not None and (table := _table(path, key)) is not None:
            self._places = table.arrays
            self._bytes = torch.from_file(str(path), shared=False, size=table.file_bytes, dtype=torch.uint8)

    @property
    def mapped(self) -> bool:
        """Whether every array so far came from the file."""
        return self._made == 0 and bool(self._arrays)

    def array(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The array of that name, which must not be written to."""
        found = self._found(name)
        if found is None:
            found = make().contiguous()
            self._made += 1
        if self._path is not None:
            self._arrays[name] = found
        return found

    def keep(self) -> str:
        """Write the file if any array had to be made. Returns why that failed, or an empty string."""
        reason = ""
        if self._path is not None and self._made:
            try:
                _write(self._path, self._key, self._arrays, self._checksum)
                self.written = True
            except OSError as error:
                reason = f"{self._path}: {error.strerror or error}"
        self._arrays = {}
        return reason

    def _found(self, name: str) -> torch.Tensor | None:
        place = self._places.get(name)
        if place is None:
            return None
        dtype = _DTYPES[place.dtype]
        part = self._bytes[place.start : place.start + math.prod(place.shape) * dtype.itemsize]
        return part.view(dtype).view(place.shape) if self._checksum(part) == place.checksum else None


def packed_path(folder: Path, dtype: torch.dtype, quantization: str) -> Path:
    """Where a model folder's packed weights are: one file for each way to compute."""
    suffix = "" if quantization == "none" else f"-{quantization}"
    return folder / ".noria" / f"{str(dtype).removeprefix('torch.')}{suffix}.packed"


def identity(folder: Path, dtype: torch.dtype, quantization: str) -> str:
    """What packed weights depend on: layout, precision, config.json, and name, size, time and samples of each weight file."""
    found = hashlib.sha256(f"{LAYOUT} {dtype} {quantization}".encode())
    found.update((folder / "config.json").read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *(folder.glob(BLOCKS) if quantization == "int8" else ())]):
        status = path.stat()
        found.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
        with path.open("rb") as file:
            for sample in range(_SAMPLES):
                file.seek(status.st_size * sample // _SAMPLES)
                found.update(file.read(_PAGE))
    return found.hexdigest()


def _table(path: Path, key: str) -> _PackedTable | None:
    """The table of a whole file that was made for this key."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            size = int.from_bytes(file.read(8), "little")
            table = msgspec.json.decode(file.read(min(size, _TABLE_BYTES_MAX)), type=_PackedTable)
            whole = os.fstat(file.fileno()).st_size == table.file_bytes
    except (OSError, msgspec.DecodeError):
        return None
    return table if whole and table.key == key else None


def _write(path: Path, key: str, arrays: dict[str, torch.Tensor], checksum: Callable[[torch.Tensor], int]) -> None:
    # The table's own size moves the arrays: laid out once from 0 to learn it, then for good.
    table = _laid_out(key, arrays, 0, checksum)
    header = len(_MAGIC) + 8 + len(msgspec.json.encode(table)) + 32 * len(arrays)
    table = _laid_out(key, arrays, -(-header // _PAGE) * _PAGE, checksum)
    path.parent.mkdir(exist_ok=True)
    if shutil.disk_usage(path.parent).free < 2 * table.file_bytes:
        raise OSError("the disk is nearly full")
    encoded = msgspec.json.encode(table)
    written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with written.open("wb") as file:
            file.write(_MAGIC + len(encoded).to_bytes(8, "little") + encoded)
            for name, array in arrays.items():
                file.seek(table.arrays[name].start)
                array.view(-1).view(torch.uint8).numpy().tofile(file)
            file.truncate(table.file_bytes)
        written.replace(path)
    finally:
        with contextlib.suppress(OSError):
            written.unlink()


def _laid_out(
    key: str, arrays: dict[str, torch.Tensor], start: int, checksum: Callable[[torch.Tensor], int]
) -> _PackedTable:
    places = {}
    for name, array in arrays.items():
        dtype, flat = str(array.dtype).removeprefix("torch."), array.view(-1).view(torch.uint8)
        places[name] = _PackedArray(dtype, tuple(array.shape), start, checksum(flat))
        start += -(-array.nbytes // _PAGE) * _PAGE
    return _PackedTable(key, start, places)
