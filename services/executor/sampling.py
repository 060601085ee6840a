"""Sampling from float32 logits, row by row independent, randomness from Philox by (seed, position).

Order: temperature, top_k, top_p, min_p. Each filter is a least logit: tokens equal to the last one kept are kept too, so
no result hangs on how a sort orders equals. top_p counts the mass left by top_k; min_p is relative to the likeliest
token. What is left is drawn by inverting the cumulative distribution in the order of token ids, in float64.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from noria.services.executor.batch import Sampler
from noria.services.executor.philox import uniform
from noria.services.executor.shape import Integers

TEMPERATURE_MIN: Final = 0.01
"""Lower temperatures above 0 are raised to this, as elsewhere in the field, so that logits do not overflow."""

_HEAD: Final = 1024
"""Likeliest tokens looked at first; a flatter row is sorted whole."""


def sample(logits: torch.Tensor, sampler: Sampler) -> torch.Tensor:
    """Sample one token id per row of logits [rows, vocabulary], which may be written to; returns int64 [rows]."""
    if len(sampler.masked_rows):
        logits[torch.from_numpy(sampler.masked_rows), torch.from_numpy(sampler.masked_ids)] = -torch.inf
    drawing = np.flatnonzero(sampler.temperature > 0)
    if not len(drawing):
        return logits.argmax(-1)
    ids = torch.empty(len(logits), dtype=torch.int64)
    greedy = np.flatnonzero(sampler.temperature <= 0)
    if len(greedy):
        rows = torch.from_numpy(greedy)
        ids[rows] = logits.index_select(0, rows).argmax(-1)
    ids[torch.from_numpy(drawing)] = _draw(logits, sampler, drawing)
    return ids


def _draw(logits: torch.Tensor, sampler: Sampler, rows: Integers) -> torch.Tensor:
    temperature = torch.from_numpy(np.maximum(sampler.temperature[rows], TEMPERATURE_MIN)).float()[:, None]
    scores = logits.index_select(0, torch.from_numpy(rows))
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature
    least = _least_scores(scores, sampler.top_k[rows], sampler.top_p[rows], sampler.min_p[rows])
    if least is not None:
        scores = scores.masked_fill_(scores < least[:, None], -torch.inf)
    cumulative = scores.exp_().cumsum(-1, dtype=torch.float64)
    draws = torch.from_numpy(uniform(sampler.seeds[rows], sampler.positions[rows]))[:, None]
    totals = cumulative[:, -1:].contiguous()
    found = torch.searchsorted(cumulative, draws * totals, right=True)
    # A product rounded up to the whole mass finds nothing: the last token with any mass is meant.
    last = torch.searchsorted(cumulative, totals)
    return torch.minimum(found, last)[:, 0]


def _least_scores(
    scores: torch.Tensor, top_k: Integers, top_p: NDArray[np.float64], min_p: NDArray[np.float64]
) -> torch.Tensor | None:
    """The least score kept in each row, or None when no row filters."""
    vocabulary = scores.shape[1]
    top_k = np.where((top_k <= 0) | (top_k >= vocabulary), 0, top_k)
    sorting = np.flatnonzero((top_k > 0) | (top_p < 1))
    if not len(sorting) and not (min_p > 0).any():
        return None
    with np.errstate(divide="ignore"):
        least = torch.from_numpy(np.log(min_p)).float()
    if len(sorting):
        rows = torch.from_numpy(sorting)
        found = _least_of_sorted(scores.index_select(0, rows), top_k[sorting], top_p[sorting])
        least[rows] = torch.maximum(least[rows], found)
    return least


def _least_of_sorted(scores: torch.Tensor, top_k: Integers, top_p: NDArray[np.float64]) -> torch.Tensor:
    head = scores.topk(min(scores.shape[1], max(_HEAD, int(top_k.max()))), -1).values
    counts = torch.from_numpy(top_k)[:, None]
    least = torch.where(counts > 0, head.gather(1, (counts - 1).clamp(min=0)), -torch.inf)
    if (top_p >= 1).all():
        return least[:, 0]
    share = torch.from_numpy(top_p)[:, None]
    # Summed one after the other, not by sum(), whose order depends on how many rows there are.
    mass = scores.masked_fill(scores < least, -torch.inf).exp_().cumsum(-1, dtype=torch.float64)[:, -1:]
    wanted = (mass * share).contiguous()
    ranked = head.masked_fill(head < least, -torch.inf)
    place = torch.searchsorted(ranked.exp().cumsum(-1, dtype=torch.float64), wanted)
    found = ranked.gather(1, place.clamp(max=ranked.shape[1] - 1))
    for row in torch.nonzero((place == ranked.shape[1]) & (share < 1))[:, 0].tolist():
        found[row] = _least_of_whole(scores[row], float(least[row]), wanted[row])
    return torch.where(share < 1, torch.maximum(least, found), least)[:, 0]


def _least_of_whole(scores: torch.Tensor, least: float, wanted: torch.Tensor) -> float:
    """The score at which the likeliest tokens, of those from `least` up, first hold the mass `wanted`."""
    ranked = scores[scores >= least].sort(descending=True).values
    place = int(torch.searchsorted(ranked.exp().cumsum(0, dtype=torch.float64), wanted))
    return float(ranked[min(place, len(ranked) - 1)])
