"""Triton kernel of the penalties, in the order of cpu/reference_sampling.py."""

import triton
import triton.language as tl


@triton.jit
def penalise(
    logits: tl.tensor,
    counted: tl.tensor,
    seen: tl.tensor,
    counts: tl.tensor,
    repetitions: tl.tensor,
    frequencies: tl.tensor,
    presences: tl.tensor,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Penalise a part of row counted[i] for tokens of its prompt, `seen`, and for how often its output has them, `counts`.

    seen, counts: [rows with penalties, VOCABULARY]. Row -1 is padding.
    """
    rank = tl.program_id(0)
    row = tl.load(counted + rank)
    if row >= 0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < VOCABULARY
        place = row.to(tl.int64) * VOCABULARY + column
        found = tl.load(logits + place, mask=inside, other=0.0)
        at = rank.to(tl.int64) * VOCABULARY + column
        times = tl.load(counts + at, mask=inside, other=0)
        produced = times > 0
        repetition = tl.load(repetitions + row)
        repeated = tl.where(found > 0, tl.div_rn(found, repetition), found * repetition)
        found = tl.where(produced | (tl.load(seen + at, mask=inside, other=0) > 0), repeated, found)
        found = tl.where(produced, found - tl.load(frequencies + row) * times.to(tl.float32), found)
        found = tl.where(produced, found - tl.load(presences + row), found)
        tl.store(logits + place, found, mask=inside)
