"""Which tensors of a GGUF file become which weights of a model, and whether the file has all that the model needs.

Decides by names and shapes alone: the model is built without memory, and its weights' names are looked up in the table
that GGUF files are written by.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from noria.cli.model_files.gguf_header import Header
from noria.shared.errors import UserError
from noria.shared.model.weight_files import TensorShape, check_tensors

if TYPE_CHECKING:
    from gguf import TensorNameMap

_SUFFIXES: Final = (".weight", ".bias")
_MERGED = re.compile(r"(?:model\.)?layers\.(\d+)\.mlp\.experts\.gate_up_proj")
"""A weight of transformers that two tensors of the file make: gates and ups of all experts of a layer."""


def check_described(gguf: Path, header: Header) -> None:
    """See that a file says what it is, before a model of some other size is made in its place. Raises UserError."""
    architecture, blocks = _described(header)
    if name_table(architecture, 0) is None:
        raise UserError(f"the architecture {architecture!r} of {gguf} is not known; choose another model")
    if not 0 < blocks <= len(header.tensors):
        raise UserError(
            f"{gguf} has {len(header.tensors)} tensors for {architecture}.block_count {blocks}, expected at least one for "
            "each block; fetch it again, or choose another"
        )


def check_gguf(gguf: Path, header: Header, weights: dict[str, TensorShape]) -> tuple[str, ...]:
    """Hold a GGUF file against the weights of the model that it is to become; returns names of tensors that nothing needs.

    weights: shapes by transformers' names, without those that are others under a second name. Raises UserError naming
    tensors that are missing or of another size.
    """
    table = name_table(*_described(header))
    assert table is not None, "refused by check_described"
    needed = {}
    for name, shape in weights.items():
        for theirs, part in _tensors(table, name, shape, header):
            # Readers turn and fold shapes as a family needs it: what must agree is how many numbers there are.
            found = header.tensors.get(theirs)
            needed[theirs] = found if found is not None and _count(found) == _count(part) else part
    return check_tensors(str(gguf), needed, header.tensors)


def _described(header: Header) -> tuple[str, int]:
    """The architecture that a file says it is of, and its number of blocks; nothing and 0 where it does not say."""
    architecture = str(header.values.get("general.architecture", ""))
    blocks = header.values.get(f"{architecture}.block_count", 0)
    return architecture, blocks if isinstance(blocks, int) else 0


def name_table(architecture: str, blocks: int) -> "TensorNameMap | None":
    """The names of an architecture's tensors in GGUF files, if it is known."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    for known, name in MODEL_ARCH_NAMES.items():
        if name == architecture:
            return get_tensor_name_map(known, blocks)
    return None


def _tensors(table: "TensorNameMap", name: str, shape: TensorShape, header: Header) -> list[tuple[str, TensorShape]]:
    """The file's tensors that make one weight, each with its shape; none where the table has no name for it."""
    if (merged := _MERGED.fullmatch(name)) is not None:
        half = (shape[0], shape[1] // 2, *shape[2:])
        return [(f"blk.{merged[1]}.ffn_{part}_exps.weight", half) for part in ("gate", "up")]
    # Some families' files are written from the inner model, whose names lack the first part.
    for each in (name, name.partition(".")[2]):
        if each and (found := table.get_name(each, _SUFFIXES)) is not None:
            whole = found.endswith(_SUFFIXES) or found in header.tensors
            return [(found if whole else f"{found}.weight", shape)]
    return []


def _count(shape: TensorShape) -> int:
    count = 1
    for each in shape:
        count *= each
    return count
