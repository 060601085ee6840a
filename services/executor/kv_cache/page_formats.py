"""How a page holds its tokens: as floats, or as eight-bit integers with scales.

int8: symmetric, one scale for each token and key-value head, kept behind the page's integers as bfloat16, which has the
range of float32; the integers are rounded by the scale as it is kept. A token's bytes depend on the token alone. Keys, and
the queries that meet them, are turned by a Hadamard matrix, which changes no product of the two but spreads the few
large channels of a key over all, so that its scale is finer (QuaRot, Ashkboos et al., 2024).
"""

import math
from typing import Final, Protocol

import torch

from noria.services.executor.model.architecture import Architecture
from noria.services.executor.plan.limits import ExecutorLimits

_SCALE: Final = torch.bfloat16
_INT8_MAX: Final = 127


CACHE_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
"""The dtypes that `cache.kv_cache_dtype` names."""


class LayerCache(Protocol):
    """The pages of one layer, to write and gather; rows are those of the group's first layer."""

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [tokens, kv heads * head size], made finite."""

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages in the computing dtype, each [pages, page * kv heads * head size], until the next gather."""


def spread(x: torch.Tensor) -> torch.Tensor:
    """Rows [..., head size] times a normalised Hadamard matrix, blockwise where the size is no power of two; float32.

    By sums and differences of pairs, one after the other, so that a row's bits depend on the row alone.
    """
    size, half = x.shape[-1], 1
    y = x.float()
    while size % (2 * half) == 0:
        pairs = torch.unflatten(y, -1, (-1, 2, half))
        one, other = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack((one + other, one - other), -2).flatten(-3)
        half *= 2
    return y / math.sqrt(half)


class KVCacheLayout(Protocol):
    """How keys and values are stored in a page: its bytes, the access to each layer, and how queries are turned to match."""

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Transform queries [tokens, heads, head size] as the stored keys were, so that their products are those of the originals."""

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys, or of the values, of one page of one layer."""

    def layer(self, pool: torch.Tensor) -> LayerCache:
        """A layer's pages in a pool [2, rows, page bytes] that begins at its first row."""


def make_page_format(
    architecture: Architecture,
    shape: ExecutorLimits,
    compute: torch.dtype,
    store: torch.dtype,
    device: torch.device | None = None,
) -> KVCacheLayout:
    """The page format of a dtype: a float type or torch.int8. device: as in `GatheredLayer`."""
    if store == torch.int8:
        return Int8Pages(shape.page_size, architecture.kv_heads, architecture.head_dim, compute, device)
    return FloatPages(shape.page_size, architecture.key_width, compute, store, device)


def page_bytes(architecture: Architecture, page_size: int, store: torch.dtype) -> int:
    """Bytes of the keys, or of the values, of one page of one layer."""
    numbers = page_size * architecture.key_width
    item = torch.empty(0, dtype=store).element_size()
    scales = page_size * architecture.kv_heads * 2 if store == torch.int8 else 0
    return numbers * item + scales


class GatheredLayer:
    """Reused memory for gathered keys and values.

    Fresh memory of this size comes from the kernel page by page, which at 32 sequences took three fifths of a step. On a
    device it is new each time: there the allocator keeps it, and graphs must keep theirs.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device | None) -> None:
        self._memory = torch.empty(2, 0, width, dtype=dtype, device=device)
        self._kept = device is None

    def of(self, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two uninitialised tensors [pages, width], for keys and values."""
        if not self._kept:
            keys, values = self._memory.new_empty(2, pages, self._memory.shape[2])
            return keys, values
        if self._memory.shape[1] < pages:
            self._memory = self._memory.new_empty(2, pages, self._memory.shape[2])
        return self._memory[0, :pages], self._memory[1, :pages]


class FloatPages:
    """The page format of float numbers."""

    def __init__(
        self,
        page_size: int,
        width: int,
        compute: torch.dtype,
        store: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        self.page_size, self.width, self.compute, self.store = page_size, width, compute, store
        self.page_bytes = page_size * width * torch.empty(0, dtype=store).element_size()
        self.gathered = GatheredLayer(page_size * width, store, device)
        self.converted = GatheredLayer(page_size * width, compute, device)

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Return the queries unchanged: pages of plain numbers need no rotation of them."""
        return queries

    def layer(self, pool: torch.Tensor) -> LayerCache:
        """The view of one layer in a pool [2, rows, page bytes] that begins at its first row."""
        return _FloatLayerCache(self, pool)


class _FloatLayerCache:
    def __init__(self, store: FloatPages, pool: torch.Tensor) -> None:
        self._store = store
        self._pages = [part.view(store.store) for part in pool]
        self._tokens = [part.view(-1, store.width) for part in self._pages]

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        for tokens, new in zip(self._tokens, (keys, values), strict=True):
            if self._store.store.itemsize > 1:
                tokens.index_copy_(0, slots, new.to(self._store.store).nan_to_num())
                continue
            # Numbers of eight bits have no infinity, and few operations of torch.
            largest = torch.finfo(self._store.store).max
            finite = new.float().nan_to_num().clamp_(-largest, largest).to(self._store.store)
            tokens.view(torch.uint8).index_copy_(0, slots, finite.view(torch.uint8))

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._store.gathered.of(len(pages))
        torch.index_select(self._pages[0], 0, pages, out=keys)
        torch.index_select(self._pages[1], 0, pages, out=values)
        if self._store.store == self._store.compute:
            return keys, values
        to_keys, to_values = self._store.converted.of(len(pages))
        return to_keys.copy_(keys), to_values.copy_(values)


class Int8Pages:
    """The page format of eight-bit integers with scales behind them."""

    def __init__(
        self, page_size: int, kv_heads: int, head_dim: int, compute: torch.dtype, device: torch.device | None = None
    ) -> None:
        self.page_size, self.kv_heads, self.head_dim = page_size, kv_heads, head_dim
        self.integers = page_size * kv_heads * head_dim
        self.page_bytes = self.integers + page_size * kv_heads * 2
        self.compute = compute
        self.gathered = GatheredLayer(self.page_bytes, torch.uint8, device)
        self.converted = GatheredLayer(self.integers, compute, device)

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Turned as the keys are."""
        return spread(queries).to(queries.dtype)

    def layer(self, pool: torch.Tensor) -> LayerCache:
        """The view of one layer in a pool [2, rows, page bytes] that begins at its first row."""
        return _Int8LayerCache(self, pool)

    def split(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of bytes [pages, page bytes]: integers [pages, page, kv heads, head size], scales [.., 1]."""
        sizes = (self.page_size, self.kv_heads)
        integers = torch.unflatten(pages.view(torch.int8)[:, : self.integers], 1, (*sizes, self.head_dim))
        scales = torch.unflatten(pages.view(_SCALE)[:, self.integers // 2 :], 1, (*sizes, 1))
        return integers, scales

    def quantised(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Integers and scales of [tokens, kv heads, head size]."""
        heads = numbers.float().nan_to_num()
        scales = (heads.abs().amax(-1, keepdim=True) / _INT8_MAX).to(_SCALE)
        divisor = scales.float()
        integers = (heads / torch.where(divisor > 0, divisor, 1.0)).round_().clamp_(-_INT8_MAX, _INT8_MAX)
        return integers.to(torch.int8), scales


class _Int8LayerCache:
    def __init__(self, store: Int8Pages, pool: torch.Tensor) -> None:
        self._store = store
        self._bytes = [pool[0], pool[1]]
        self._parts = [store.split(part) for part in self._bytes]

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        place = (slots // self._store.page_size, slots % self._store.page_size)
        sizes = (-1, self._store.kv_heads, self._store.head_dim)
        for (integers, scales), new in zip(self._parts, (spread(keys.view(sizes)), values.view(sizes)), strict=True):
            new_integers, new_scales = self._store.quantised(new)
            integers[place] = new_integers
            scales[place] = new_scales

    def gather(self, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raw = self._store.gathered.of(len(pages))
        out = self._store.converted.of(len(pages))
        for part, gathered, numbers in zip(self._bytes, raw, out, strict=True):
            torch.index_select(part, 0, pages, out=gathered)
            integers, scales = self._store.split(gathered)
            torch.mul(integers, scales.to(self._store.compute), out=numbers.view(integers.shape))
        return out
