"""Counter-based randomness: Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).

A draw is a function of (seed, position) alone, so it does not matter who else is in the batch, or how often a position
is computed again.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""32-bit words in 64-bit places, so that products do not overflow."""

_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL: Final = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW: Final = np.uint64(0xFFFFFFFF)
_SHIFT: Final = np.uint64(32)
_ROUNDS: Final = 10


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Ten rounds over arrays of counters and keys, each word below 2**32; returns four words per element."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _SHIFT) ^ c1 ^ k0, second & _LOW, (first >> _SHIFT) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seeds: Words, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits per (64-bit seed, position)."""
    counter = positions.astype(np.uint64)
    zero = np.zeros_like(counter)
    high, low, _, _ = philox4x32((counter & _LOW, counter >> _SHIFT, zero, zero), (seeds & _LOW, seeds >> _SHIFT))
    bits = ((high >> np.uint64(5)) << np.uint64(26)) | (low >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53
