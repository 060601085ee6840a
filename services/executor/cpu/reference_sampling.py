"""The definition of sampling: from float32 logits, each row by itself, random numbers from Philox by (seed, position).

This is the definition; native/sampling.cpp computes the same operations on the same numbers, faster.

Order, as in vLLM: logit_bias (-inf where a token is banned) is added; of tokens in prompt or output, a positive logit is
divided by the repetition penalty and another one multiplied; of tokens in the output, frequency penalty times count and
then the presence penalty are subtracted. Temperature 0 takes the first of the likeliest tokens. Else temperature, top_k,
top_p, min_p, in this order, each a least score: tokens equal to the last one kept are kept too, so no result hangs on how
a sort orders equals. top_p counts the mass left by top_k; min_p is relative to the likeliest token. What is left is drawn
by inverting the cumulative distribution in the order of ids.

A score is (logit - largest) * scale in float32, in bits, so that a weight is 2 ** score: `weights`, a fixed sequence of
float32 operations without fused ones, the same bits wherever it is computed. Weights are summed in float64. A logit that is
no number counts as -inf, an infinite one as the largest number; in a row in which nothing may be sampled, id 0 is.

Log-probabilities are the model's own, before all of the above, as in OpenAI's API and vLLM (raw_logprobs): what a request
asks for about likelihood does not change with how it samples. Of equally likely tokens, lower ids come first.
"""

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from noria.services.executor.cpu.philox import uniform
from noria.services.executor.plan.limits import Integers
from noria.services.executor.plan.sampling_metadata import Floats, SamplerOutput, SamplingMetadata, wanted_logprobs

SCORE_MIN: Final = np.float32(-126)
"""Scores from here down weigh nothing: 2 ** -126 is the smallest normal float32."""

POWERS: Final = tuple(
    np.float32(float.fromhex(each))
    for each in ("0x1.5bba14p-10", "0x1.3cea88p-7", "0x1.c6b752p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p0")
)
"""2 ** x for -0.5 <= x <= 0.5 as 1 + c1 x + ... + c5 x ** 5: minimax of the relative error, 1.9e-7 with all roundings."""

_LOG2_E: Final = np.float32(math.log2(math.e))
_LARGEST: Final = float(np.finfo(np.float32).max)


def sample(logits: torch.Tensor, sampler: SamplingMetadata) -> SamplerOutput:
    """Sample one token per row of logits [rows, vocabulary], which are overwritten."""
    rows: Floats = logits.numpy()
    count = len(rows)
    parameters = sampler.parameters
    most = wanted_logprobs(sampler)
    drawn = SamplerOutput(
        np.zeros(count, np.int64),
        np.zeros(count if most >= 0 else 0, np.float32),
        np.zeros((count, max(most, 0)), np.int32),
        np.zeros((count, max(most, 0)), np.float32),
    )
    draws = uniform(parameters["seed"], sampler.positions)
    with np.errstate(all="ignore"):  # infinities and what comes of them have their meaning here
        for index, row in enumerate(rows):
            wanted = int(parameters["logprobs"][index])
            row[:] = _finite(row)
            raw = row.copy() if wanted >= 0 else row
            _adjust(row, sampler, index)
            token = _draw(_finite(row), parameters[index], float(draws[index]))
            drawn.ids[index] = token
            if wanted >= 0:
                shares = _logprobs(raw)
                top = _likeliest(raw, wanted)
                drawn.logprobs[index] = shares[token]
                drawn.top_ids[index, :wanted], drawn.top_logprobs[index, :wanted] = top, shares[top]
    return drawn


def weights(scores: Floats) -> Floats:
    """2 ** score, of scores up to 0 in bits."""
    clipped = np.fmax(scores, SCORE_MIN)
    whole = np.rint(clipped)
    part = clipped - whole
    power = np.full_like(part, POWERS[0])
    for coefficient in POWERS[1:]:
        power = power * part + coefficient
    scaled = power * ((whole.astype(np.int32) + 127) << 23).view(np.float32)
    return np.where(clipped > SCORE_MIN, scaled, np.float32(0))


def _logprobs(row: Floats) -> NDArray[np.float64]:
    top = row.max()
    total = weights((row - top) * _LOG2_E).sum(dtype=np.float64)
    shares: NDArray[np.float64] = row.astype(np.float64) - float(top) - np.log(total)
    return shares


def _likeliest(row: Floats, count: int) -> Integers:
    """The ids of the largest logits, largest first; of equals the lower id."""
    if not count:
        return np.zeros(0, np.int64)
    found = np.flatnonzero(row >= np.partition(row, -count)[-count])
    ranked: Integers = found[np.argsort(-row[found], kind="stable")[:count]]
    return ranked


def _adjust(row: Floats, sampler: SamplingMetadata, index: int) -> None:
    """Add the bias to one row and subtract its penalties, in place."""
    biased = slice(sampler.bias_starts[index], sampler.bias_starts[index + 1])
    for token, value in zip(sampler.bias_ids[biased], sampler.bias_values[biased], strict=True):
        row[token] += value
    history = sampler.history[sampler.history_starts[index] : sampler.history_starts[index + 1]]
    if len(history):
        parameters = sampler.parameters[index]
        seen = np.unique(history)
        repetition = parameters["repetition"]
        row[seen] = np.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
        produced, counts = np.unique(history[sampler.prompts[index] :], return_counts=True)
        row[produced] -= parameters["frequency"] * counts.astype(np.float32)
        row[produced] -= parameters["presence"]


def _finite(row: Floats) -> Floats:
    """The row with -inf for NaN, and the largest float32 for +inf."""
    if np.isfinite(row).all():
        return row
    clean: Floats = np.nan_to_num(row, nan=-np.inf, posinf=_LARGEST, neginf=-np.inf)
    return clean


def _draw(row: Floats, parameters: np.void, uniform: float) -> int:
    """One row's token; uniform: its number in [0, 1)."""
    top = row.max()
    if parameters["scale"] == 0 or top == -np.inf:
        return int(row.argmax())
    scores = (row - top) * parameters["scale"]
    weight = weights(scores)
    least = np.float32(-np.inf)
    if parameters["top_k"]:
        least = np.partition(scores, -parameters["top_k"])[-parameters["top_k"]]
    if parameters["top_p"] < 1:
        ranked = np.sort(scores[scores >= least])[::-1]
        mass = np.cumsum(weights(ranked), dtype=np.float64)
        least = ranked[min(int(np.searchsorted(mass, mass[-1] * parameters["top_p"])), len(ranked) - 1)]
    least = max(least, parameters["least"])
    cumulative = np.cumsum(np.where(scores >= least, weight, np.float32(0)), dtype=np.float64)
    found = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    # A product rounded up to the whole mass finds nothing: the last token with any mass is meant.
    return min(found, int(np.searchsorted(cumulative, cumulative[-1])))
