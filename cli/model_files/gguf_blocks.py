"""Keeps a GGUF file's quantised blocks beside the converted folder, so that int8 kernels need not quantise again.

Decides which weights are kept, and the order of their rows. A weight is kept only where its blocks give the folder's numbers
bit for bit; a weight that conversion changed in another way than reordering rows is left out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from noria.cli.model_files.gguf_tensors import name_table
from noria.shared.model.model_folder import BLOCK_BYTES, BLOCKS

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def keep_blocks(gguf: Path, folder: Path, weights: Mapping[str, Floats], heads: tuple[int, ...]) -> int:
    """Write the blocks of a folder's weights, where the file has usable ones; returns for how many weights.

    weights: the folder's, in float32. heads: numbers of heads that the rows of a weight may be made of.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(gguf)
    names = _names(reader, weights)
    found: dict[str, Bytes] = {}
    for tensor in reader.tensors:
        name = names.get(tensor.name)
        if name is not None and tensor.tensor_type.name in BLOCK_BYTES:
            blocks = _in_order(tensor, weights[name], heads)
            if blocks is not None:
                found[name] = blocks
    if found:
        save_file(found, str(folder / BLOCKS))
    return len(found)


def _names(reader: "GGUFReader", weights: Mapping[str, Floats]) -> dict[str, str]:
    """Return the folder's weight names by the file's tensor names, for matrices."""
    architecture = _value(reader, "general.architecture")
    table = name_table(architecture, int(_value(reader, f"{architecture}.block_count")))
    if table is None:
        return {}
    found = {table.get_name(each, (".weight",)): each for each, weight in weights.items() if weight.ndim == 2}
    return {theirs: ours for theirs, ours in found.items() if theirs is not None}


def _value(reader: "GGUFReader", key: str) -> str:
    field = reader.fields.get(key)
    return str(field.contents()) if field is not None else "0"


def _in_order(tensor: "ReaderTensor", weight: Floats, heads: tuple[int, ...]) -> Bytes | None:
    """Return a tensor's rows of blocks in the order that gives the weight; None when no order does."""
    from gguf import dequantize

    if len(tensor.data) != len(weight) or tensor.data.ndim != 2:
        return None
    for blocks in _orders(np.ascontiguousarray(tensor.data), heads):
        if np.array_equal(dequantize(blocks, tensor.tensor_type), weight):
            return blocks
    return None


def _orders(rows: Bytes, heads: tuple[int, ...]) -> Iterator[Bytes]:
    """Yield the rows as they are, then with each head's pairs split: llama.cpp rotates neighbours, transformers halves."""
    yield rows
    count, size = rows.shape
    for number in heads:
        if number and count % (2 * number) == 0:
            pairs = rows.reshape(number, count // number // 2, 2, size)
            yield np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(count, size)
