"""What a model's weight files hold, read from their headers alone, and whether that is all that a model needs.

Decides when weights count as whole: the files are as long as their headers say, every tensor that is needed is there in
its shape, and what nothing needs is named. Knows no model and reads no numbers, so that it costs nothing before memory
is taken; a pull and the executor ask it both.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from noria.shared.errors import UserError

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

TensorShape = tuple[int, ...]

_HEADER_BYTES_MAX: Final = 100 << 20  # what the safetensors library accepts
_LISTED: Final = 3


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor in a safetensors file: the file's name, the kind of its numbers ("F32", "BF16"), and its shape."""

    file: str
    dtype: str
    shape: TensorShape


class _SafetensorsEntry(msgspec.Struct):
    dtype: str
    shape: TensorShape
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


class _SafetensorsIndex(msgspec.Struct):
    weight_map: dict[str, str]


def weight_files(folder: Path) -> tuple[str, ...]:
    """Names of the safetensors files that a model folder's weights are in: the single file, else those of the index.

    Raises UserError when the index cannot be read.
    """
    return tuple(sorted(set(_index(folder).values()))) or (SINGLE,)


def read_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Tensors of a model folder by name. Raises UserError when a file is missing, cut short, or not what the index says."""
    index = _index(folder)
    files = {name: read_header(folder / name) for name in weight_files(folder)}
    found = {name: tensor for tensors in files.values() for name, tensor in tensors.items()}
    for name, file in index.items():
        if name not in files[file]:
            raise damaged(folder, f"{INDEX} says that {file} holds {name}, but it does not")
        found[name] = files[file][name]
    return found


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Tensors of one safetensors file by name. Raises UserError when it is missing, damaged, or not of its right length."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = file.read(size) if size <= _HEADER_BYTES_MAX else b""
            file.seek(0, 2)
            actual = file.tell()
        if actual < 8 or size > _HEADER_BYTES_MAX:
            raise damaged(path.parent, f"{path.name} ({actual} bytes) is not a safetensors file")
        if actual < 8 + size:
            raise damaged(
                path.parent, f"{path.name} has {actual} bytes, expected more than {8 + size}: it is cut short"
            )
        fields = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        fields.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(field, type=_SafetensorsEntry) for name, field in fields.items()}
    except OSError as error:
        raise damaged(path.parent, f"{path.name}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path.parent, f"the header of {path.name} is damaged: {error}") from error
    expected = 8 + size + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if actual != expected:
        wrong = "cut short" if actual < expected else "too long"
        raise damaged(path.parent, f"{path.name} has {actual} bytes, expected {expected}: it is {wrong}")
    return {name: TensorInfo(path.name, entry.dtype, entry.shape) for name, entry in entries.items()}


def other_files(folder: Path) -> tuple[str, ...]:
    """Names of a folder's safetensors files that its weights are not read from."""
    return tuple(sorted({path.name for path in folder.glob("*.safetensors")} - set(weight_files(folder))))


def check_tensors(where: str, needed: Mapping[str, TensorShape], found: Mapping[str, TensorShape]) -> tuple[str, ...]:
    """Hold what there is against what a model needs; returns the names, sorted, of tensors that nothing needs.

    where: the file or folder, for the error. Raises UserError naming tensors that are missing or of another shape.
    """
    unused = tuple(sorted(found.keys() - needed.keys()))
    if missing := [name for name in needed if name not in found]:
        beside = f" (it holds {listed(unused)}, which nothing uses)" if unused else ""
        raise UserError(f"{where} lacks {listed(missing)}{beside}; pull or convert the model again, or choose another")
    if wrong := [name for name, shape in needed.items() if found[name] != shape]:
        first, more = wrong[0], f", and {len(wrong) - 1} more are wrong" if wrong[1:] else ""
        raise UserError(
            f"{first} in {where} has shape {_shape(found[first])}, expected {_shape(needed[first])}{more}; "
            "config and weights are not of the same model: pull or convert it again, or choose another"
        )
    return unused


def check_loaded(where: str, report: Mapping[str, Collection[Any]]) -> None:
    """Refuse a model of which transformers did not find every weight, and which it therefore filled with random numbers.

    report: its loading information: missing_keys are names, mismatched_keys (name, shape found, shape expected).
    Raises UserError.
    """
    wrong = {name: (tuple(shape), tuple(expected)) for name, shape, expected in report["mismatched_keys"]}
    needed = {name: expected for name, (_, expected) in wrong.items()} | dict.fromkeys(report["missing_keys"], ())
    found = {name: shape for name, (shape, _) in wrong.items()} | dict.fromkeys(report["unexpected_keys"], ())
    check_tensors(where, dict(sorted(needed.items())), found)


def listed(names: Sequence[str]) -> str:
    """The first few of some names, and how many more there are, for a message of one line."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def first_line(error: Exception) -> str:
    """What an error of another library says first, or its name where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def damaged(folder: Path, what: str) -> UserError:
    """The error of a folder whose weights cannot be used; `what` says what is wrong with which file."""
    return UserError(
        f"cannot read the weights in {folder}: {what}; remove the folder and pull the model again, or choose another"
    )


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor as the index has it; nothing where there is none, or a single file beside it.

    That the single file goes first is transformers' rule, which reads the same folders for models of other families.
    """
    path = folder / INDEX
    try:
        if (folder / SINGLE).is_file() or not path.is_file():
            return {}
        found: Any = msgspec.json.decode(path.read_bytes(), type=_SafetensorsIndex).weight_map
    except OSError as error:
        raise damaged(folder, f"{INDEX}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(folder, f"{INDEX} is damaged: {error}") from error
    for file in found.values():
        if not file or Path(file).name != file:
            raise damaged(folder, f"{INDEX} names {file!r}, which is not a file of the folder")
    return dict(found)


def _shape(shape: TensorShape) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"
