"""Which layers share a block table, and how their blocks tile the pool's chunks.

Layers that see as far form a group; a window that covers the whole context is none. The chunk is the least number of
pages that blocks of every group fill exactly.
"""

import math

from noria.proto.execution import Group


def layer_groups(windows: tuple[int, ...], max_model_tokens: int) -> tuple[tuple[int, int], ...]:
    """For each layer its group and its rank among that group's layers; full attention is the first group."""
    effective = _effective(windows, max_model_tokens)
    order = sorted(set(effective))
    ranks = dict.fromkeys(order, 0)
    places = []
    for window in effective:
        places.append((order.index(window), ranks[window]))
        ranks[window] += 1
    return tuple(places)


def cache_groups(
    windows: tuple[int, ...], max_model_tokens: int, max_batch_tokens: int, page_size: int
) -> tuple[Group, ...]:
    """The groups of a model, windows by layer. A ring holds a window and the largest slice written before it is read."""
    effective = _effective(windows, max_model_tokens)
    counts = {window: effective.count(window) for window in sorted(set(effective))}
    chunk = math.lcm(*counts.values())
    return tuple(
        Group(window, layers, chunk // layers, ring_pages(window, max_batch_tokens, page_size) if window else 0)
        for window, layers in counts.items()
    )


def ring_pages(window: int, max_batch_tokens: int, page_size: int) -> int:
    """Entries of a sliding group's table: a slice of max_batch_tokens and the window before it, wherever pages begin."""
    return -(-(window + max_batch_tokens) // page_size) + 1


def _effective(windows: tuple[int, ...], max_model_tokens: int) -> tuple[int, ...]:
    return tuple(window if window < max_model_tokens else 0 for window in windows)
