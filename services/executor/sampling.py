"""Sampling from float32 logits, row by row independent, randomness from Philox by (seed, position).

Order: temperature, top_k, top_p, min_p. Each filter is a least logit: tokens equal to the last one kept are kept too, so
no result hangs on how a sort orders equals. top_p counts the mass left by top_k; min_p is relative to the likeliest
token. What is left is drawn by inverting the cumulative distribution in the order of token ids, in float64.
"""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from noria.services.executor.batch import Integers, Sampler
from noria.services.executor.philox import uniform

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
    totals = cumulative[:, -1:]
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
    vocabulary = scores.shape[1]
    head = scores.topk(min(vocabulary, max(_HEAD, int(top_k.max()))), -1).values
    least = torch.full((len(scores),), -torch.inf)
    for row in range(len(scores)):
        ranked = head[row]
        if top_k[row] > 0:
            least[row] = ranked[top_k[row] - 1]
        if top_p[row] < 1:
            least[row] = _least_of_mass(scores[row], ranked, float(least[row]), float(top_p[row]))
    return least


def _least_of_mass(scores: torch.Tensor, ranked: torch.Tensor, least: float, share: float) -> float:
    """The score at which the likeliest tokens, of those from `least` up, first hold `share` of the mass."""
    kept = scores[scores >= least]
    wanted = kept.exp().cumsum(0, dtype=torch.float64)[-1] * share
    for candidates in (ranked, None):
        values = kept.sort(descending=True).values if candidates is None else candidates[candidates >= least]
        mass = values.exp().cumsum(0, dtype=torch.float64)
        place = int(torch.searchsorted(mass, wanted))
        if place < len(values):
            return float(values[place])
    return float(kept.min())
