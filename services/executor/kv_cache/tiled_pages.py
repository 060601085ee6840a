"""Pages as the native kernels multiply them: bfloat16, head by head in a page, in tiles of sixteen tokens.

So attention reads keys and values where they are; from pages that keep a token's numbers side by side it has to bring both
into this order first, which took as long as the products do with one token a sequence.
"""

from typing import Final

import torch

from noria.services.executor.model.architecture import Architecture

TOKENS: Final = 16
"""In a tile of keys: [numbers / 2][tokens][2]."""

NUMBERS: Final = 32
"""Of a head that values keep together: [tokens / 2][numbers / 32][even ones, odd ones][16][2 tokens]."""


def tiled(architecture: Architecture, page_size: int, compute: torch.dtype, store: torch.dtype) -> bool:
    """Whether this model's pages can be kept in tiles: bfloat16 in cache and computing, and sizes that tiles divide."""
    half = compute == store == torch.bfloat16
    return half and page_size % TOKENS == 0 and architecture.head_dim % NUMBERS == 0


class TiledPages:
    """The page format of tiles for the native kernels."""

    def __init__(self, page_size: int, kv_heads: int, head_dim: int) -> None:
        self.page_size, self.kv_heads, self.head_dim = page_size, kv_heads, head_dim
        self.page_bytes = 2 * page_size * kv_heads * head_dim

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Return the queries unchanged: tiled pages need no rotation of them."""
        return queries

    def layer(self, pool: torch.Tensor) -> "TiledLayerCache":
        """A layer's pages in a pool [2, rows, page bytes] that begins at its first row."""
        return TiledLayerCache(self, pool)


class TiledLayerCache:
    """One layer's tiled pages."""

    def __init__(self, store: TiledPages, pool: torch.Tensor) -> None:
        self._store = store
        size, heads, numbers = store.page_size, store.kv_heads, store.head_dim
        keys, values = (part.view(torch.bfloat16) for part in pool)
        self._keys = keys.view(-1, heads, size // TOKENS, numbers // 2, TOKENS, 2)
        self._values = values.view(-1, heads, size // 2, numbers // NUMBERS, 2, NUMBERS // 2, 2)

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [tokens, kv heads * head size], made finite."""
        size, heads, numbers = self._store.page_size, self._store.kv_heads, self._store.head_dim
        page, place = slots // size, slots % size
        pairs = keys.nan_to_num().view(-1, heads, numbers // 2, 2)
        self._keys[page, :, place // TOKENS, :, place % TOKENS] = pairs
        halves = values.nan_to_num().view(-1, heads, numbers // NUMBERS, NUMBERS // 2, 2).transpose(-1, -2)
        self._values[page, :, place // 2, :, :, :, place % 2] = halves

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages token by token, each [pages, page * kv heads * head size]."""
        keys = self._keys[pages].permute(0, 2, 4, 1, 3, 5)
        values = self._values[pages].permute(0, 2, 6, 1, 3, 5, 4)
        return keys.reshape(len(pages), -1), values.reshape(len(pages), -1)
