"""Triton kernels between two matrix products: embedding, norms and gates.

The residual stream is float32; what enters a product is of the model's dtype.
"""

import triton
import triton.language as tl

from noria.services.executor.cuda.triton.attention_kernels import tanh


@triton.jit
def embed(
    table: tl.tensor,
    token_ids: tl.tensor,
    carry: tl.tensor,
    last_tokens: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    WIDTH: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One token's row of the table [vocabulary, WIDTH], in float32: of its id, or of what its slot sampled last."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(carry + row)
    token = tl.load(token_ids + row)
    if slot >= 0:
        token = tl.load(last_tokens + slot)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    found = tl.load(table + token.to(tl.int64) * WIDTH + column, mask=inside, other=0.0)
    if SCALED:
        found = (found.to(tl.float32) * scale).to(table.dtype.element_ty)
    tl.store(out + row * WIDTH + column, found.to(tl.float32), mask=inside)


@triton.jit
def add_norm(
    x: tl.tensor,
    residual: tl.tensor,
    rows: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    epsilon: tl.tensor,
    WIDTH: tl.constexpr,
    ADDS: tl.constexpr,
    KEEPS: tl.constexpr,
    PICKS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """RMS norm of one token's x, plus its residual where ADDS; KEEPS the sum there. PICKS: of token rows[i]."""
    row = tl.program_id(0).to(tl.int64)
    source = row
    if PICKS:
        source = tl.load(rows + row).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.load(x + source * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        total += tl.load(residual + source * WIDTH + column, mask=inside, other=0.0)
    if KEEPS:
        tl.store(residual + source * WIDTH + column, total, mask=inside)
    normal = tl.rsqrt(tl.sum(total * total, 0) / WIDTH + epsilon)
    scaled = total * normal * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate(x: tl.tensor, out: tl.tensor, WIDTH: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """activation(first half) * second half of one token's x [2 * WIDTH]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    first = tl.load(x + row * (2 * WIDTH) + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + row * (2 * WIDTH) + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        active = 0.5 * first * (1.0 + tanh(0.7978845608028654 * (first + 0.044715 * first * first * first)))
    else:
        active = first / (1.0 + tl.exp(-first))
    tl.store(out + row * WIDTH + column, (active * second).to(out.dtype.element_ty), mask=inside)
