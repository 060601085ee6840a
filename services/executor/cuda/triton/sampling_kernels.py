"""Triton kernels of sampling as cpu/reference_sampling.py defines it: one program for a row, nothing sorted.

A score is at most 0, so the bits of its absolute value are an integer that grows as the score falls. The least score that
top_k or top_p keeps is found two bits at a time: how many tokens, or how much mass, lie above a candidate. Weights are the
same float32 operations as cpu/reference_sampling.py's, and none of them may be fused: launch with enable_fp_fusion=False.
"""

import triton
import triton.language as tl

_ALL = tl.constexpr(0x7F800000)
"""The key of the score -inf, which no other exceeds."""

_ROUNDER = tl.constexpr(12582912)
_LAST = tl.constexpr(0x7FFFFFFF)


@triton.jit
def choose(
    logits: tl.tensor,
    scales: tl.tensor,
    top_ks: tl.tensor,
    top_ps: tl.tensor,
    leasts: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    ids: tl.tensor,
    last_tokens: tl.tensor,
    recent: tl.tensor,
    VOCABULARY: tl.constexpr,
    RECENT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The token of one row of logits [rows, VOCABULARY], into ids [rows], and by slot into last_tokens and recent [.., RECENT]."""
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * VOCABULARY
    top, token = _largest(row, VOCABULARY, BLOCK)
    scale = tl.load(scales + index)
    if (scale != 0) & (top > float("-inf")):
        kept = tl.full((), _ALL, tl.int32)
        top_k, top_p = tl.load(top_ks + index), tl.load(top_ps + index)
        if top_k > 0:
            kept = _kept(row, top, scale, kept, top_k.to(tl.float64), VOCABULARY, BLOCK, 1)
        if top_p < 1:
            wanted = _mass(row, top, scale, kept, VOCABULARY, BLOCK) * top_p
            kept = _kept(row, top, scale, kept, wanted, VOCABULARY, BLOCK, 0)
        kept = tl.minimum(kept, tl.abs(tl.load(leasts + index)).to(tl.int32, bitcast=True))
        uniform = _uniform(tl.load(seeds + index), tl.load(positions + index))
        token = _draw(row, top, scale, kept, uniform, VOCABULARY, BLOCK)
    slot = tl.load(slots + index)
    tl.store(ids + index, token)
    tl.store(last_tokens + slot, token)
    tl.store(recent + slot * RECENT + (tl.load(positions + index) % RECENT).to(tl.int32), token)


@triton.jit
def write_logprobs(
    logits: tl.tensor,
    ids: tl.tensor,
    wanted: tl.tensor,
    shares: tl.tensor,
    top_ids: tl.tensor,
    top_shares: tl.tensor,
    width: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Log-probabilities of one row's ids[i], and of its wanted[i] likeliest tokens into top_ids, top_shares [rows, width]."""
    index = tl.program_id(0)
    count = tl.load(wanted + index)
    if count >= 0:
        row = logits + index.to(tl.int64) * VOCABULARY
        top, token = _largest(row, VOCABULARY, BLOCK)
        mass = _mass(
            row, top, tl.full((), 1.4426950216293335, tl.float32), tl.full((), _ALL, tl.int32), VOCABULARY, BLOCK
        )
        rest = top.to(tl.float64) + tl.log(mass)
        chosen = _finite(tl.load(row + tl.load(ids + index)))
        tl.store(shares + index, (chosen.to(tl.float64) - rest).to(tl.float32))
        value = top
        for rank in range(count):
            if rank > 0:
                value, token = _next(row, value, token, VOCABULARY, BLOCK)
            tl.store(top_ids + index * width + rank, token)
            tl.store(top_shares + index * width + rank, (value.to(tl.float64) - rest).to(tl.float32))


@triton.jit
def _finite(x: tl.tensor) -> tl.tensor:
    """The logits with -inf for NaN, and the largest float32 for +inf."""
    x = tl.where(x == x, x, float("-inf"))
    return tl.minimum(x, 3.4028234663852886e38)


@triton.jit
def _largest(row: tl.tensor, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The largest logit and the first id that has it; id 0 where all are -inf."""
    top = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), 0, tl.int32)
    for at in range(0, VOCABULARY, BLOCK):
        column = at + tl.arange(0, BLOCK)
        found = _finite(tl.load(row + column, mask=column < VOCABULARY, other=float("-inf")))
        most = tl.max(found, 0)
        first = tl.min(tl.where(found == most, column, _LAST), 0)
        token = tl.where(most > top, first, token)
        top = tl.maximum(top, most)
    return top, token


@triton.jit
def _next(
    row: tl.tensor, value: tl.tensor, token: tl.tensor, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The logit and id that follow in the order of falling logits, of equals by id."""
    top = tl.full((), float("-inf"), tl.float32)
    best = tl.full((), _LAST, tl.int32)
    for at in range(0, VOCABULARY, BLOCK):
        column = at + tl.arange(0, BLOCK)
        found = _finite(tl.load(row + column, mask=column < VOCABULARY, other=float("-inf")))
        after = (found < value) | ((found == value) & (column > token))
        after = after & (column < VOCABULARY)
        most = tl.max(tl.where(after, found, float("-inf")), 0)
        first = tl.min(tl.where(after & (found == most), column, _LAST), 0)
        better = (most > top) | ((most == top) & (first < best))
        best = tl.where(better, first, best)
        top = tl.maximum(top, most)
    return top, best


@triton.jit
def _scores(
    row: tl.tensor, column: tl.tensor, top: tl.tensor, scale: tl.tensor, VOCABULARY: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Scores in bits, and their keys; what lies beyond the vocabulary scores -inf."""
    found = _finite(tl.load(row + column, mask=column < VOCABULARY, other=float("-inf")))
    scores = (found - top) * scale
    return scores, tl.abs(scores).to(tl.int32, bitcast=True)


@triton.jit
def _weights(scores: tl.tensor) -> tl.tensor:
    """2 ** score in float32, as cpu/reference_sampling.py's `weights`."""
    clipped = tl.maximum(scores, -126.0)
    whole = (clipped + _ROUNDER) - _ROUNDER
    part = clipped - whole
    power = 0.001326472731307149 * part + 0.009671512991189957
    power = power * part + 0.05550733581185341
    power = power * part + 0.24022242426872253
    power = power * part + 0.6931470036506653
    power = power * part + 1.0
    scaled = power * ((whole.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(clipped > -126.0, scaled, 0.0)


@triton.jit
def _mass(
    row: tl.tensor, top: tl.tensor, scale: tl.tensor, kept: tl.tensor, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """The weight of all tokens whose key is at most `kept`."""
    total = tl.full((), 0.0, tl.float64)
    for at in range(0, VOCABULARY, BLOCK):
        scores, keys = _scores(row, at + tl.arange(0, BLOCK), top, scale, VOCABULARY)
        total += tl.sum(tl.where(keys <= kept, _weights(scores), 0.0).to(tl.float64), 0)
    return total


@triton.jit
def _kept(
    row: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
    among: tl.tensor,
    wanted: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNTS: tl.constexpr,
) -> tl.tensor:
    """The least key up to which tokens, of those with keys up to `among`, are as many, or weigh as much, as wanted."""
    key = tl.full((), 0, tl.int32)
    for step in range(16):
        shift = tl.maximum(29 - 2 * step + 0 * key, 0)
        one = key + (tl.full((), 1, tl.int32) << shift)
        two = key + (tl.full((), 2, tl.int32) << shift)
        three = key + (tl.full((), 3, tl.int32) << shift)
        below_one = tl.full((), 0.0, tl.float64)
        below_two = tl.full((), 0.0, tl.float64)
        below_three = tl.full((), 0.0, tl.float64)
        for at in range(0, VOCABULARY, BLOCK):
            column = at + tl.arange(0, BLOCK)
            scores, keys = _scores(row, column, top, scale, VOCABULARY)
            if COUNTS:
                size = tl.where(column < VOCABULARY, 1.0, 0.0).to(tl.float64)
            else:
                size = tl.where(keys <= among, _weights(scores), 0.0).to(tl.float64)
            below_one += tl.sum(tl.where(keys < one, size, 0.0), 0)
            below_two += tl.sum(tl.where(keys < two, size, 0.0), 0)
            below_three += tl.sum(tl.where(keys < three, size, 0.0), 0)
        key = tl.where(below_one < wanted, one, key)
        key = tl.where(below_two < wanted, two, key)
        key = tl.where(below_three < wanted, three, key)
    return key


@triton.jit
def _uniform(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """The number in [0, 1) of (seed, position), as cpu/philox.py's."""
    low_word, high_word = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
    zero = low_word & 0
    high, low, _, _ = tl.philox(seed, low_word, high_word, zero, zero)
    bits = ((high >> 5).to(tl.uint64) << 26) | (low >> 6).to(tl.uint64)
    return bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _draw(
    row: tl.tensor,
    top: tl.tensor,
    scale: tl.tensor,
    kept: tl.tensor,
    uniform: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The token at `uniform` of the mass of tokens with keys up to `kept`, in the order of ids."""
    total = tl.full((), 0.0, tl.float64)
    for at in range(0, VOCABULARY, BLOCK):
        scores, keys = _scores(row, at + tl.arange(0, BLOCK), top, scale, VOCABULARY)
        sums = total + tl.cumsum(tl.where(keys <= kept, _weights(scores), 0.0).to(tl.float64), 0)
        total = tl.max(sums, 0)
    wanted, before = uniform * total, tl.full((), 0.0, tl.float64)
    token, last = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for at in range(0, VOCABULARY, BLOCK):
        column = at + tl.arange(0, BLOCK)
        scores, keys = _scores(row, column, top, scale, VOCABULARY)
        sums = before + tl.cumsum(tl.where(keys <= kept, _weights(scores), 0.0).to(tl.float64), 0)
        before = tl.max(sums, 0)
        token += tl.sum(((sums <= wanted) & (column < VOCABULARY)).to(tl.int32), 0)
        last += tl.sum(((sums < total) & (column < VOCABULARY)).to(tl.int32), 0)
    # A product rounded up to the whole mass finds nothing: the last token with any mass is meant.
    return tl.minimum(token, last)
