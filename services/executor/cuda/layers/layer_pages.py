"""One layer's pages on a device as kernels read them, in the layout of kv_cache/page_formats.py."""

from dataclasses import dataclass

import torch

from noria.services.executor.model.architecture import Architecture


@dataclass(slots=True, eq=False)
class LayerPages:
    """Keys and values of one layer, from its row 0 on; their scales, as bits of bfloat16 in int16, where integers are kept.

    stride: numbers from one page to the next.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor
    value_scales: torch.Tensor
    stride: int
    quantised: bool


def layer_pages(rows: torch.Tensor, store: torch.dtype) -> LayerPages:
    """A layer's pages in its bytes [2, rows, page bytes]."""
    keys, values = rows[0].view(store), rows[1].view(store)
    quantised = store == torch.int8
    scales = [each.view(torch.int16) if quantised else keys for each in rows]
    return LayerPages(keys, values, scales[0], scales[1], keys.shape[1], quantised)


def largest(store: torch.dtype) -> float:
    """The largest number that a cache of this dtype stores."""
    return torch.finfo(torch.float32 if store == torch.int8 else store).max


def head_block(architecture: Architecture) -> int:
    """Columns that a kernel takes for a head: a power of two, 16 at least."""
    return max(16, 1 << (architecture.head_dim - 1).bit_length())
