"""The bytes of the paged cache: what block numbers in plans point to.

One tensor per attention group, [layers, 2 (keys, values), blocks, page, kv heads, head size]: a page of one layer lies
together, so gathering pages copies whole runs of some kilobytes.
"""

from collections.abc import Iterable

import numpy as np
import torch

from noria.proto.execution import Copy
from noria.services.executor.families import Architecture
from noria.services.executor.shape import Shape


class Cache:
    """Keys and values of the full-attention group. Memory is taken page by page as blocks are first used."""

    def __init__(self, architecture: Architecture, shape: Shape, dtype: torch.dtype) -> None:
        width = architecture.kv_heads * architecture.head_dim
        size = (architecture.layers, 2, shape.num_blocks, shape.page_size, width)
        # calloc gives zeros without touching them, which torch.zeros does not; zeros so that no page is ever read that
        # holds a stray NaN, which masked probability 0 would not silence.
        item = torch.empty(0, dtype=dtype).element_size()
        raw = np.zeros(int(np.prod(size)) * item, np.uint8)
        self.bytes = raw.nbytes
        self._pool = torch.from_numpy(raw).view(dtype).view(size)
        self._gathered = self._pool.new_empty(2, 0, shape.page_size * width)
        self._pages = [(layer[0].flatten(1), layer[1].flatten(1)) for layer in self._pool]
        self._tokens = [(layer[0].flatten(0, 1), layer[1].flatten(0, 1)) for layer in self._pool]

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [tokens, kv heads * head size] at token places `slots` (block * page + offset)."""
        to_keys, to_values = self._tokens[layer]
        to_keys.index_copy_(0, slots, keys)
        to_values.index_copy_(0, slots, values)

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the listed pages, each [pages, page * kv heads * head size], valid until the next gather.

        Always into the same memory: fresh memory of this size comes from the kernel page by page, which at 32 sequences
        took three fifths of a step.
        """
        count = len(pages)
        if self._gathered.shape[1] < count:
            self._gathered = self._pool.new_empty(2, count, self._pool.shape[3] * self._pool.shape[4])
        keys, values = self._gathered[0, :count], self._gathered[1, :count]
        torch.index_select(self._pages[layer][0], 0, pages, out=keys)
        torch.index_select(self._pages[layer][1], 0, pages, out=values)
        return keys, values

    def copy(self, copies: Iterable[Copy]) -> None:
        """Copy whole blocks, in order."""
        for each in copies:
            self._pool[:, :, each.target] = self._pool[:, :, each.source]
