"""Reads the header of a GGUF file and checks that the file is as long as its tensors need.

Every read is checked against the file's end, so that a truncated file, or one that is not GGUF, is refused before anything
else opens it. No tensor is read.
"""

import mmap
import struct
from pathlib import Path
from typing import Final

import msgspec

from noria.shared.errors import UserError
from noria.shared.model.weight_files import TensorShape

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_ALIGNMENT: Final = 32
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_NESTED_MAX: Final = 4
_DIMENSIONS_MAX: Final = 4
_NAME_BYTES_MAX: Final = 1 << 16


class GgufHeader(msgspec.Struct, frozen=True):
    """The header of a GGUF file.

    tensors: shapes by name, outermost dimension first. values: metadata that is one number or one short string, by key.
    """

    tensors: dict[str, TensorShape]
    values: dict[str, int | float | str]


class _MalformedHeaderError(Exception):
    """The header is not that of a GGUF file that this version knows."""


class _TruncatedHeaderError(Exception):
    """The file ends within its header; the message is the least size in bytes that it needs."""


def read_gguf(path: Path) -> GgufHeader:
    """Read a GGUF file's header. Raises UserError when it is no GGUF file, damaged, cut short, or one of several parts."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < len(_MAGIC):
                raise UserError(f"{path} is not a GGUF file: it has {size} bytes; name one that is")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _read(path, data)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a GGUF file that can be read") from error
    if isinstance(parts := header.values.get("split.count"), int) and parts > 1:
        raise UserError(
            f"{path} is one of {parts} parts of a model; merge them (llama-gguf-split --merge) and name the result"
        )
    if not header.tensors:
        raise UserError(f"{path} holds no weights, only a vocabulary; name a GGUF file that has both")
    return header


def _read(path: Path, data: mmap.mmap) -> GgufHeader:
    """The header of a file that is whole. Raises UserError."""
    size = len(data)
    try:
        header, expected = _GgufHeaderReader(data).header()
    except _MalformedHeaderError as error:
        raise UserError(f"cannot read {path} as a GGUF file: {error}; fetch it again, or choose another") from error
    except _TruncatedHeaderError as error:
        raise UserError(
            f"{path} is cut short: it has {size} bytes and ends within its header, expected at least {error}; fetch it again"
        ) from error
    if size < expected:
        raise UserError(f"{path} is cut short: it has {size} bytes, expected {expected}; fetch it again")
    return header


class _GgufHeaderReader:
    """Reads a header value by value, never beyond the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._order = "<"

    def header(self) -> tuple[GgufHeader, int]:
        """Read the header; also returns how many bytes the file must have."""
        if self._bytes(4) != _MAGIC:
            raise _MalformedHeaderError("it does not begin with GGUF")
        if self._number("I") & 0xFFFF == 0:
            self._order = ">"  # written by a big-endian machine
        self._at -= 4
        if (version := self._number("I")) not in _VERSIONS:
            raise _MalformedHeaderError(f"version {version} is not one of {', '.join(map(str, _VERSIONS))}")
        tensors, fields = self._number("Q"), self._number("Q")
        values: dict[str, int | float | str] = {}
        for _ in range(fields):
            name = self._name()
            value = self._value(self._number("I"), 0)
            if value is not None:
                values[name] = value
        found: dict[str, TensorShape] = {}
        end = 0
        for _ in range(tensors):
            name, shape, size = self._tensor()
            if name in found:
                raise _MalformedHeaderError(f"it holds {name} twice")
            found[name], end = shape, max(end, size)
        alignment = values.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise _MalformedHeaderError(f"general.alignment is {alignment}")
        return GgufHeader(found, values), (-(-self._at // alignment) * alignment + end if found else self._at)

    def _tensor(self) -> tuple[str, TensorShape, int]:
        """Read one tensor's entry; returns its name, its shape, and where its data ends."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, dimensions = self._name(), self._number("I")
        if dimensions > _DIMENSIONS_MAX:
            raise _MalformedHeaderError(f"{name} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        try:
            numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError) as error:
            raise _MalformedHeaderError(f"the numbers of {name} are of kind {kind}, which is not known") from error
        count = 1
        for each in shape:
            count *= each
        return name, shape, offset + count // numbers * size

    def _value(self, kind: int, depth: int) -> int | float | str | None:
        """Read one value; None for a long string or an array, which are skipped."""
        if kind == _STRING:
            length = self._number("Q")
            text = self._bytes(length)
            return text.decode(errors="replace") if length <= _NAME_BYTES_MAX else None
        if kind in _SCALARS:
            found: int | float = self._number(_SCALARS[kind])
            return found
        if kind != _ARRAY or depth > _NESTED_MAX:
            raise _MalformedHeaderError(f"a value of kind {kind} is not known")
        of, count = self._number("I"), self._number("Q")
        if of in _SCALARS:
            self._skip(count * struct.calcsize(self._order + _SCALARS[of]))
        elif of == _STRING:
            for _ in range(count):
                self._skip(self._number("Q"))
        else:
            for _ in range(count):
                self._value(of, depth + 1)
        return None

    def _name(self) -> str:
        length = self._number("Q")
        if length > _NAME_BYTES_MAX:
            raise _MalformedHeaderError(f"a name has {length} bytes")
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError as error:
            raise _MalformedHeaderError("a name is not UTF-8") from error

    def _number(self, kind: str) -> int:
        start = self._skip(struct.calcsize(self._order + kind))
        found: int = struct.unpack_from(self._order + kind, self._data, start)[0]
        return found

    def _bytes(self, count: int) -> bytes:
        start = self._skip(count)
        return self._data[start : start + count]

    def _skip(self, count: int) -> int:
        """Skip so many bytes; returns where they begin."""
        start, end = self._at, self._at + count
        if end > len(self._data):
            raise _TruncatedHeaderError(str(end))
        self._at = end
        return start
