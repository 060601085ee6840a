"""Ragged attention over pages in plain PyTorch: attention spans are summed one by one, then joined in order.

Every product has a chunk's fixed number of keys and at least four query rows, so a query token's result depends on its
own context alone. Chunks are joined as in flash-decoding (Dao et al., 2023): each gives its output and the logarithm of
its weight; a chunk that a row cannot see has weight exactly 0.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from noria.services.executor.cpu.step_tensors import SingleQueryTensors, SpanKeyChunks, padded_rows
from noria.services.executor.kv_cache.paged_cache import KVCache
from noria.services.executor.model.architecture import Architecture

Level = tuple[torch.Tensor, torch.Tensor]
"""A chunk's output [n, kv heads, rows, head size] and log-weight [n, kv heads, rows], of the first n slices."""


def singles_attention(
    cache: KVCache, layer: int, queries: torch.Tensor, singles: SingleQueryTensors, architecture: Architecture
) -> torch.Tensor:
    """Attention of single-token slices: [slices, heads * head size] in the order of `singles.rows`."""
    kv_heads, group, head_dim = architecture.kv_heads, architecture.query_group, architecture.head_dim
    grouped = queries.index_select(0, singles.rows).view(-1, kv_heads, group, head_dim)
    grouped = functional.pad(grouped, (0, 0, 0, padded_rows(group) - group))
    items = grouped if len(singles.counts) == 1 else grouped.index_select(0, singles.members)
    output, weight = _items(cache, layer, items, singles, architecture)
    levels = list(zip(torch.split(output, singles.counts), torch.split(weight, singles.counts), strict=True))
    joined = _join(levels, queries.dtype)[:, :, :group]
    return joined.reshape(-1, kv_heads * group * head_dim)


def span_attention(
    cache: KVCache, layer: int, queries: torch.Tensor, span: SpanKeyChunks, architecture: Architecture
) -> torch.Tensor:
    """Attention of one slice of several tokens: [length, heads * head size]."""
    kv_heads, group, head_dim = architecture.kv_heads, architecture.query_group, architecture.head_dim
    rows = span.length * group
    grouped = queries.reshape(-1, kv_heads, group, head_dim).transpose(0, 1).reshape(1, kv_heads, rows, head_dim)
    grouped = functional.pad(grouped, (0, 0, 0, padded_rows(rows) - rows))
    levels = [_chunk(cache, layer, grouped, chunk.pages, chunk.mask, architecture) for chunk in span.chunks]
    joined = _join(levels, queries.dtype)[0, :, :rows]
    return joined.view(kv_heads, span.length, group, head_dim).transpose(0, 1).reshape(span.length, -1)


def _items(
    cache: KVCache, layer: int, items: torch.Tensor, singles: SingleQueryTensors, architecture: Architecture
) -> Level:
    """Attention of all items, in parts whose gathered pages fit GATHER_BYTES."""
    count, at_once = len(items), cache.items_max
    if count <= at_once:
        return _chunk(cache, layer, items, singles.pages, singles.mask, architecture)
    pages = singles.pages.view(count, -1)
    parts = [
        _chunk(
            cache,
            layer,
            items[start : start + at_once],
            pages[start : start + at_once].flatten(),
            singles.mask[start : start + at_once],
            architecture,
        )
        for start in range(0, count, at_once)
    ]
    return torch.cat([output for output, _ in parts]), torch.cat([weight for _, weight in parts])


def _chunk(
    cache: KVCache, layer: int, items: torch.Tensor, pages: torch.Tensor, mask: torch.Tensor, architecture: Architecture
) -> Level:
    """Attention of items [n, kv heads, rows, head size] to one chunk of pages each; mask broadcasts to [n, 1, rows, keys]."""
    count, kv_heads, rows, head_dim = items.shape
    keys, values = (part.view(count, -1, kv_heads, head_dim).transpose(1, 2) for part in cache.gather(layer, pages))
    if architecture.score_cap is not None:
        return _capped(items, keys, values, mask, architecture.scale, architecture.score_cap)
    output, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        items,
        keys,
        values,
        0.0,
        False,
        attn_mask=mask.expand(count, 1, rows, keys.shape[2]),
        scale=architecture.scale,
    )
    return output, weight


def _capped(
    items: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float, cap: float
) -> Level:
    """Attention of items to one span with scores bounded by cap * tanh(score / cap), in float32."""
    scores = torch.matmul(items.float(), keys.float().transpose(2, 3)) * scale
    scores = torch.tanh(scores / cap) * cap + mask.float()
    weight = torch.logsumexp(scores, -1)
    return torch.matmul(torch.exp(scores - weight[..., None]), values.float()), weight


def _join(levels: Sequence[Level], dtype: torch.dtype) -> torch.Tensor:
    """Join chunks in order. One chunk alone is returned as it is: joining it would change no bit."""
    if len(levels) == 1:
        return levels[0][0].to(dtype)
    top = levels[0][1].clone()
    for _, weight in levels[1:]:
        torch.maximum(top[: len(weight)], weight, out=top[: len(weight)])
    total = torch.zeros_like(top)
    joined = torch.zeros(levels[0][0].shape, dtype=torch.float32)
    for output, weight in levels:
        share = torch.exp(weight - top[: len(weight)])
        total[: len(weight)] += share
        joined[: len(weight)] += share[..., None] * output
    return (joined / total[..., None]).to(dtype)
