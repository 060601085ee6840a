"""The paged cache on a processor: the memory that block numbers in plans name.

The pool is keys and values as [rows, one page]: a page is `page_size` tokens of one layer, and `ExecutorLimits.rows` says which
rows a block is, so that blocks of every group tile the same chunks. A second pool of the same kind, on the host, takes
the blocks of preempted requests.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from noria.proto.execution import Copy
from noria.services.executor.kv_cache.page_formats import KVCacheLayout, make_page_format
from noria.services.executor.kv_cache.tiled_pages import TiledPages, tiled
from noria.services.executor.model.architecture import Architecture
from noria.services.executor.plan.limits import ExecutorLimits

GATHER_BYTES: Final = 32 << 20
"""Keys and values that attention gathers at once, at most: more slices are done one part after the other."""


class KVCache:
    """Keys and values of all layers, on the device and in the host pool. Memory is taken page by page on first use.

    places: for each layer its group and its rank there. items_max: chunks of keys gathered at once. dtype: of what is
    stored. native: whether native kernels read it, for which pages are tiled where they can be.
    """

    def __init__(
        self,
        architecture: Architecture,
        shape: ExecutorLimits,
        places: Sequence[tuple[int, int]],
        compute: torch.dtype,
        store: torch.dtype,
        *,
        native: bool = False,
    ) -> None:
        self._shape = shape
        self.dtype = store
        self.tiled = native and tiled(architecture, shape.page_size, compute, store)
        self._store: KVCacheLayout = (
            TiledPages(shape.page_size, architecture.kv_heads, architecture.head_dim)
            if self.tiled
            else make_page_format(architecture, shape, compute, store)
        )
        pages = shape.pool_chunk_pages
        self._pool = self._zeros(shape.num_chunks * pages)
        self._host = self._zeros(shape.num_host_chunks * pages)
        self._ranks = [rank for _, rank in places]
        self._layers = [self._store.layer(self._pool[:, rank * shape.num_chunks :]) for rank in self._ranks]
        self.bytes = self._pool.nbytes
        item = torch.empty(0, dtype=compute).element_size()
        self.items_max = items_max(architecture, shape, item)

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys, or of the values, of one page of one layer."""
        return self._store.page_bytes

    def addresses(self, layer: int) -> tuple[int, int]:
        """Where a layer's keys and values begin: its row 0."""
        keys, values = self.rows(layer)
        return keys.data_ptr(), values.data_ptr()

    def rows(self, layer: int) -> torch.Tensor:
        """A layer's keys and values as bytes [2, rows, page bytes], from its row 0 on."""
        return self._pool[:, self._ranks[layer] * self._shape.num_chunks :]

    def regions(self) -> list[int]:
        """Where the pages begin that lie in a chunk each, one after the other: keys and values of each rank of layers."""
        return [page.data_ptr() for half in self._pool for page in half[:: self._shape.num_chunks]]

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Queries [tokens, heads, head size] as they meet the gathered keys."""
        return self._store.queries(queries)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [tokens, kv heads * head size] at token rows `slots` of the layer's group."""
        self._layers[layer].write(slots, keys, values)

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The listed pages in the computing dtype, each [pages, page * kv heads * head size], until the next gather."""
        return self._layers[layer].gather(pages)

    def move(self, swap_out: Sequence[Copy], copies: Sequence[Copy], swap_in: Sequence[Copy]) -> None:
        """Copy whole blocks: device to host, on the device, host to device; each kind at once, sources read first."""
        device, host = (self._pool, self._shape.num_chunks), (self._host, self._shape.num_host_chunks)
        for moves, (source, source_chunks), (target, target_chunks) in (
            (swap_out, device, host),
            (copies, device, device),
            (swap_in, host, device),
        ):
            if moves:
                from_rows = self._rows([(each.group, each.source) for each in moves], source_chunks)
                to_rows = self._rows([(each.group, each.target) for each in moves], target_chunks)
                target.index_copy_(1, to_rows, source.index_select(1, from_rows))

    def _rows(self, blocks: Sequence[tuple[int, int]], chunks: int) -> torch.Tensor:
        """The rows of all layers of (group, block) pairs in a pool of so many chunks."""
        found = []
        for group, block in blocks:
            first = int(self._shape.rows(group, np.array(block), chunks))
            found.append(torch.arange(self._shape.groups[group].layers) * chunks + first)
        return torch.cat(found)

    def _zeros(self, rows: int) -> torch.Tensor:
        # calloc gives zeros without touching them, which torch.zeros does not; zeros so that no page is ever read that
        # holds a stray NaN, which masked probability 0 would not silence.
        return torch.from_numpy(np.zeros((2, rows, self._store.page_bytes), np.uint8))


def items_max(architecture: Architecture, shape: ExecutorLimits, item_bytes: int) -> int:
    """How many spans of keys fit GATHER_BYTES."""
    return max(1, GATHER_BYTES // (2 * shape.pages_per_span * shape.page_size * architecture.key_width * item_bytes))
