"""Maps tensors of a GGUF file to weights of a model, and checks that the file has all that the model needs.

Only names and shapes are compared: the model is built on the meta device, and names come from the gguf package's table.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from noria.cli.model_files.gguf_header import GgufHeader
from noria.shared.errors import UserError
from noria.shared.model.weight_files import TensorShape, check_tensors

if TYPE_CHECKING:
    from gguf import TensorNameMap

_SUFFIXES: Final = (".weight", ".bias")
_MERGED = re.compile(r"(?:model\.)?layers\.(\d+)\.mlp\.experts\.gate_up_proj")
"""A weight of transformers that is two tensors in the file: gate and up projections of all experts of a layer."""


def check_described(gguf: Path, header: GgufHeader) -> None:
    """Check that a file names a known architecture and a possible number of blocks. Raises UserError."""
    architecture, blocks = _described(header)
    if name_table(architecture, 0) is None:
        raise UserError(f"the architecture {architecture!r} of {gguf} is not known; choose another model")
    if not 0 < blocks <= len(header.tensors):
        raise UserError(
            f"{gguf} has {len(header.tensors)} tensors for {architecture}.block_count {blocks}, expected at least one for "
            "each block; fetch it again, or choose another"
        )


def check_gguf(gguf: Path, header: GgufHeader, weights: dict[str, TensorShape]) -> tuple[str, ...]:
    """Check that a GGUF file has all weights of the model that it becomes; returns the names of unused tensors.

    weights: shapes by transformers' names, tied weights once. Raises UserError naming
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


def _described(header: GgufHeader) -> tuple[str, int]:
    """Return a file's architecture and number of blocks; an empty name and 0 where the header lacks them."""
    architecture = str(header.values.get("general.architecture", ""))
    blocks = header.values.get(f"{architecture}.block_count", 0)
    return architecture, blocks if isinstance(blocks, int) else 0


def name_table(architecture: str, blocks: int) -> "TensorNameMap | None":
    """Return the names of an architecture's tensors in GGUF files; None for an unknown architecture."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    for known, name in MODEL_ARCH_NAMES.items():
        if name == architecture:
            return get_tensor_name_map(known, blocks)
    return None


def _tensors(
    table: "TensorNameMap", name: str, shape: TensorShape, header: GgufHeader
) -> list[tuple[str, TensorShape]]:
    """Return the names and shapes of the file's tensors that make one weight; empty where the table has no name for it."""
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
