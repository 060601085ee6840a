"""Triton kernels of ragged attention over the paged cache: pieces of work (cuda/layout/step_sizes.py), and the join of splits.

A program takes one piece of work and one key-value head: its rows are the query tokens times the query heads that share
the key-value head. Keys are taken in blocks that begin at multiples of BLOCK_N of the sequence, one after the other, as in
FlashAttention (Dao, 2023); what a row must not see has weight exactly 0. So a row's result depends on its own context alone,
whoever is in the step. Work whose slice is -1 is padding.
"""

import triton
import triton.language as tl


@triton.jit
def attend(
    queries: tl.tensor,
    out: tl.tensor,
    weights: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    table: tl.tensor,
    pitch: tl.tensor,
    work: tl.tensor,
    starts: tl.tensor,
    rows: tl.tensor,
    lengths: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    RING: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    CAPPED: tl.constexpr,
    QUANTISED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Attention of one piece of work for one key-value head.

    queries [T, heads * HEAD_DIM]; keys, values: a layer's pages, PAGE_STRIDE numbers each; their scales, where QUANTISED, as
    bits of bfloat16. table [slices, pitch]. work [n, 2]: slice, and its first query token there, or where SPLIT is not 0
    the rank of the split of so many keys. out: as queries, or where SPLIT float32 [n, heads, HEAD_DIM] with log2 of
    the weights [n, heads].
    """
    index, head = tl.program_id(0), tl.program_id(1)
    owner = tl.load(work + 2 * index)
    if owner >= 0:
        second = tl.load(work + 2 * index + 1)
        start, row, length = tl.load(starts + owner), tl.load(rows + owner), tl.load(lengths + owner)
        first_token = second
        if SPLIT:
            first_token = second * 0
        tile: tl.constexpr = BLOCK_M // GROUP
        each = tl.arange(0, BLOCK_M)
        token = first_token + each // GROUP
        real = (each < tile * GROUP) & (token < length)
        position = start + token
        query_head = head * GROUP + each % GROUP
        column = tl.arange(0, BLOCK_D)
        inside = column < HEAD_DIM
        places = ((row + token).to(tl.int64) * (KV_HEADS * GROUP) + query_head)[:, None] * HEAD_DIM + column[None, :]
        asked = tl.load(queries + places, mask=real[:, None] & inside[None, :], other=0.0)

        first = start * 0
        last = start + tl.minimum(length, first_token + tile)
        if WINDOW:
            first = tl.maximum(start + first_token - WINDOW + 1, 0)
        if SPLIT:
            first = tl.maximum(first, second * SPLIT)
            last = tl.minimum(last, (second + 1) * SPLIT)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        for at in range(first // BLOCK_N * BLOCK_N, last, BLOCK_N):
            key = at + tl.arange(0, BLOCK_N)
            there = (key >= first) & (key < last)
            entry = key // PAGE_SIZE
            if RING:
                entry = entry % RING
            page = tl.load(table + owner * pitch + entry, mask=there, other=0).to(tl.int64)
            place = key % PAGE_SIZE
            token_at = page * PAGE_STRIDE + place * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM
            scale_at = page * (PAGE_STRIDE // 2) + PAGE_SIZE * KV_HEADS * HEAD_DIM // 2 + place * KV_HEADS + head
            key_block = tl.load(
                keys + token_at[None, :] + column[:, None], mask=there[None, :] & inside[:, None], other=0.0
            )
            value_block = tl.load(
                values + token_at[:, None] + column[None, :], mask=there[:, None] & inside[None, :], other=0.0
            )
            if QUANTISED:
                key_block = key_block.to(tl.float32) * bfloat16(key_scales + scale_at, there)[None, :]
                value_block = value_block.to(tl.float32) * bfloat16(value_scales + scale_at, there)[:, None]
            scores = tl.dot(asked, key_block.to(asked.dtype), input_precision="ieee") * scale
            if CAPPED:
                scores = cap * tanh(scores / cap)
            scores = scores * 1.4426950408889634
            seen = there[None, :] & (key[None, :] <= position[:, None])
            if WINDOW:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
            larger = tl.maximum(top, tl.max(scores, 1))
            # A row that has seen nothing yet would give NaN.
            base = tl.where(larger == float("-inf"), 0.0, larger)
            shares = tl.exp2(scores - base[:, None])
            kept = tl.exp2(top - base)
            total = total * kept + tl.sum(shares, 1)
            mixed = mixed * kept[:, None] + tl.dot(
                shares.to(asked.dtype), value_block.to(asked.dtype), input_precision="ieee"
            )
            top = larger
        # Rows beyond the slice may have seen nothing.
        total = tl.where(total > 0, total, 1.0)
        found = mixed / total[:, None]
        if SPLIT:
            split_at = index.to(tl.int64) * (KV_HEADS * GROUP) + query_head
            tl.store(weights + split_at, top + tl.log2(total), mask=real)
            places = split_at[:, None] * HEAD_DIM + column[None, :]
        tl.store(out + places, found.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


@triton.jit
def join(
    parts: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    joins: tl.tensor,
    singles: tl.tensor,
    rows: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Join the splits of one single token and query head, in order, into its row of out [T, HEADS * HEAD_DIM]."""
    index, head = tl.program_id(0), tl.program_id(1)
    owner = tl.load(singles + index)
    if owner >= 0:
        first, count = tl.load(joins + 2 * index), tl.load(joins + 2 * index + 1)
        column = tl.arange(0, BLOCK_D)
        inside = column < HEAD_DIM
        begin = first.to(tl.int64) * HEADS + head
        top = tl.load(weights + begin)
        for each in range(1, count):
            top = tl.maximum(top, tl.load(weights + begin + each * HEADS))
        total = top * 0.0
        mixed = tl.zeros((BLOCK_D,), tl.float32)
        for each in range(count):
            at = begin + each * HEADS
            share = tl.exp2(tl.load(weights + at) - top)
            total += share
            mixed += share * tl.load(parts + at * HEAD_DIM + column, mask=inside, other=0.0)
        places = (tl.load(rows + owner).to(tl.int64) * HEADS + head) * HEAD_DIM + column
        tl.store(out + places, (mixed / total).to(out.dtype.element_ty), mask=inside)


@triton.jit
def bfloat16(pointers: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Numbers kept as bits of bfloat16 in int16, as float32; 0 where masked."""
    return (tl.load(pointers, mask=mask, other=0).to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Hyperbolic tangent, off by 1e-7 at most."""
    shrunk = tl.exp(-2.0 * tl.abs(x))
    found = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -found, found)
