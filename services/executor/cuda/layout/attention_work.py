"""How attention is cut into work that a device does at once: tiles of queries, and splits of keys.

Pure: numpy only.
"""

import numpy as np

from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.page_tables import first_seen


def tile_counts(lengths: Integers, tile_tokens: int) -> Integers:
    """By slice, how many tiles of query tokens it has."""
    return -(-lengths // tile_tokens)


def split_counts(ends: Integers, window: int, split_tokens: int) -> Integers:
    """By single token, how many splits of keys it sees; ends: its position and one."""
    return (ends - 1) // split_tokens - first_split(ends, window, split_tokens) + 1


def first_split(ends: Integers, window: int, split_tokens: int) -> Integers:
    """By single token, the split that holds the first key it sees."""
    return first_seen(ends - 1, window) // split_tokens


def ranks(counts: Integers) -> tuple[Integers, Integers]:
    """For counts 2, 3: owners 0 0 1 1 1, and ranks among an owner's 0 1 0 1 2."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
