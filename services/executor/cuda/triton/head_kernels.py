"""Triton kernel between the projection and attention: head norms, rotation, writing the cache."""

import triton
import triton.language as tl

_ROUNDER = tl.constexpr(12582912)
"""1.5 * 2 ** 23: adding and subtracting it rounds a small float32 to the nearest integer, halves to even."""


@triton.jit
def rotate_write(
    qkv: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    write_slots: tl.tensor,
    positions: tl.tensor,
    rotations: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    epsilon: tl.tensor,
    limit: tl.tensor,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PAGE_STRIDE: tl.constexpr,
    NORMED: tl.constexpr,
    ROTATED: tl.constexpr,
    QUANTISED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """One token's GROUP query heads of a key-value head, its key and its value: ROWS rows, the last ones unused.

    qkv [T, (heads + 2 * KV_HEADS) * HEAD_DIM]; queries [T, heads * HEAD_DIM]. keys, values: a layer's pages, finite numbers
    up to `limit` only. rotations [positions, HEAD_DIM]: cosines, then sines. ROTATED: they are to be rotated.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    each = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    heads: tl.constexpr = GROUP * KV_HEADS
    half: tl.constexpr = HEAD_DIM // 2
    is_query, is_key = each < GROUP, each == GROUP
    inside = (each < GROUP + 2)[:, None] & (column < HEAD_DIM)[None, :]
    among = tl.where(is_query, head * GROUP + each, heads + head + tl.where(is_key, 0, KV_HEADS))
    base = qkv + (token * (heads + 2 * KV_HEADS) + among)[:, None] * HEAD_DIM
    partner = (column + half) % HEAD_DIM
    turning = tl.load(base + column[None, :], mask=inside, other=0.0).to(tl.float32)
    if ROTATED:
        other = tl.load(base + partner[None, :], mask=inside, other=0.0).to(tl.float32)
        normal = tl.full((ROWS,), 1.0, tl.float32)
        if NORMED:
            normal = tl.rsqrt(tl.sum(turning * turning, 1) / HEAD_DIM + epsilon)
            turning = turning * normal[:, None] * _weights(query_norm, key_norm, is_query, column, HEAD_DIM)
            other = other * normal[:, None] * _weights(query_norm, key_norm, is_query, partner, HEAD_DIM)
        at = rotations + tl.load(positions + token).to(tl.int64) * HEAD_DIM + column % half
        cosine = tl.load(at, mask=column < HEAD_DIM, other=0.0)
        sine = tl.load(at + half, mask=column < HEAD_DIM, other=0.0)
        sine = tl.where(column < half, -sine, sine)
        turned = turning * cosine[None, :] + other * sine[None, :]
        plain = tl.load(base + column[None, :], mask=inside, other=0.0).to(tl.float32)
        turning = tl.where((each <= GROUP)[:, None], turned, plain)
    rounded = turning.to(qkv.dtype.element_ty).to(tl.float32)
    asked = rounded
    if QUANTISED:
        mixed = spread(rounded, ROWS, HEAD_DIM, BLOCK_D)
        asked = mixed
        rounded = tl.where((each <= GROUP)[:, None], mixed, rounded)
    query_at = (token * heads + among)[:, None] * HEAD_DIM + column[None, :]
    tl.store(queries + query_at, asked.to(queries.dtype.element_ty), mask=inside & is_query[:, None])

    rounded = tl.where(rounded == rounded, rounded, 0.0)
    rounded = tl.minimum(tl.maximum(rounded, -limit), limit)
    slot = tl.load(write_slots + token)
    page, place = slot // PAGE_SIZE, slot % PAGE_SIZE
    cache_at = (
        page * PAGE_STRIDE + place * (KV_HEADS * HEAD_DIM) + head * HEAD_DIM + column[None, :] + 0 * each[:, None]
    )
    if QUANTISED:
        largest = tl.max(tl.where(inside, tl.abs(rounded), 0.0), 1)
        bits = _bfloat16_bits(tl.div_rn(largest, 127.0))
        divisor = (bits << 16).to(tl.float32, bitcast=True)
        divisor = tl.where(divisor > 0, divisor, 1.0)
        ratio = tl.minimum(tl.maximum(tl.div_rn(rounded, divisor[:, None]), -127.0), 127.0)
        # Rounding and the clamp may change places: both limits are integers.
        rounded = (ratio + _ROUNDER) - _ROUNDER
        scale_at = page * (PAGE_STRIDE // 2) + PAGE_SIZE * KV_HEADS * HEAD_DIM // 2 + place * KV_HEADS + head + 0 * each
        tl.store(key_scales + scale_at, bits.to(tl.int16), mask=is_key)
        tl.store(value_scales + scale_at, bits.to(tl.int16), mask=each == GROUP + 1)
    stored = rounded.to(keys.dtype.element_ty)
    tl.store(keys + cache_at, stored, mask=inside & is_key[:, None])
    tl.store(values + cache_at, stored, mask=inside & (each == GROUP + 1)[:, None])


@triton.jit
def _weights(
    query_norm: tl.tensor, key_norm: tl.tensor, is_query: tl.tensor, column: tl.tensor, HEAD_DIM: tl.constexpr
) -> tl.tensor:
    """The weights of the norms, by row and column."""
    of_query = tl.load(query_norm + column, mask=column < HEAD_DIM, other=0.0).to(tl.float32)
    of_key = tl.load(key_norm + column, mask=column < HEAD_DIM, other=0.0).to(tl.float32)
    return tl.where(is_query[:, None], of_query[None, :], of_key[None, :])


@triton.jit
def _bfloat16_bits(x: tl.tensor) -> tl.tensor:
    """The bits of positive float32 numbers rounded to bfloat16, halves to even, in int32."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


@triton.jit
def spread(x: tl.tensor, ROWS: tl.constexpr, SIZE: tl.constexpr, BLOCK_D: tl.constexpr) -> tl.tensor:
    """Rows [ROWS, BLOCK_D], of which SIZE columns count, times a normalised Hadamard matrix: the sums of kv_cache/page_formats.py's."""
    half: tl.constexpr = SIZE & -SIZE
    for step in tl.static_range(0, 10):
        if (1 << step) < half:
            pairs = tl.reshape(x, (ROWS, BLOCK_D // (2 << step), 2, 1 << step))
            one, other = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
            x = tl.reshape(tl.permute(tl.join(one + other, one - other), (0, 1, 3, 2)), (ROWS, BLOCK_D))
    return tl.div_rn(x, tl.sqrt_rn(tl.full((), half, tl.float32)))
