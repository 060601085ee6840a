"""What `cpu/reference_sampling.py` defines, of all rows at once and in plain PyTorch, for any device.

The same choices for the same logits, seeds and positions; sums are of float64, whose order may differ in the last bit.
"""

import math
from typing import Final

import torch

from noria.services.executor.cpu.reference_sampling import POWERS, SCORE_MIN
from noria.services.executor.cuda.device.step_inputs import SamplingInputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs
from noria.services.executor.cuda.layout.step_layout import NOBODY, OUTPUT

_LARGEST: Final = torch.finfo(torch.float32).max
_LOW: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10


def sample(logits: torch.Tensor, sampled: SamplingInputs, history: torch.Tensor, out: StepOutputs) -> None:
    """Sample one token per row of logits [rows, vocabulary]. history: of `sampled`, with nothing pending."""
    logits = _finite(logits)
    adjusted = _finite(_adjusted(logits, sampled, history))
    ids = _drawn(adjusted, sampled)
    out.ids.copy_(ids)
    if len(out.logprobs):
        shares = _logprobs(logits)
        out.logprobs.copy_(shares.gather(1, ids[:, None])[:, 0])
        if width := out.top_ids.shape[1]:
            # Of equally likely tokens, lower ids come first.
            best = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :width]
            out.top_ids.copy_(best)
            out.top_logprobs.copy_(shares.gather(1, best))


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """`philox.uniform` of seeds as int64 bits."""
    c0, c1 = positions & _LOW, positions >> 32 & _LOW
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seeds & _LOW, seeds >> 32 & _LOW
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # 64 bits, whatever their sign is taken for
        c0, c1, c2, c3 = (second >> 32 & _LOW) ^ c1 ^ k0, second & _LOW, (first >> 32 & _LOW) ^ c3 ^ k1, first & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return (c0 >> 5 << 26 | c1 >> 6).double() * 2.0**-53


def weights(scores: torch.Tensor) -> torch.Tensor:
    """2 ** score, of scores up to 0 in bits; operation by operation as `sampling.weights`."""
    least = float(SCORE_MIN)
    clipped = scores.nan_to_num(nan=least).clamp(min=least)
    whole = clipped.round()
    part = clipped - whole
    power = torch.full_like(part, float(POWERS[0]))
    for coefficient in POWERS[1:]:
        power = power * part + float(coefficient)
    scaled = power * ((whole.to(torch.int32) + 127) << 23).view(torch.float32)
    return torch.where(clipped > least, scaled, 0.0)


def _adjusted(logits: torch.Tensor, sampled: SamplingInputs, history: torch.Tensor) -> torch.Tensor:
    """Logits with the bias added and penalties subtracted."""
    rows, vocabulary = logits.shape
    if len(sampled.bias_rows):
        logits = logits.index_put(
            (sampled.bias_rows.long(), sampled.bias_ids.long()), sampled.bias_values, accumulate=True
        )
    if len(sampled.counted):
        places = sampled.history_rows.long(), history.long()
        real, output = (sampled.history_kinds > 0).float(), (sampled.history_kinds == OUTPUT).float()
        empty = logits.new_zeros(len(sampled.counted), vocabulary)
        seen = empty.index_put(places, real, accumulate=True) > 0
        counts = empty.index_put(places, output, accumulate=True)
        # Padding is put where no row is.
        of = torch.where(sampled.counted == NOBODY, rows, sampled.counted).long()
        taken = torch.cat((logits, logits[:1])).index_select(0, of)
        repetition, frequency, presence = (
            torch.cat((each, each[:1])).index_select(0, of)[:, None]
            for each in (sampled.repetition, sampled.frequency, sampled.presence)
        )
        repeated = torch.where(taken > 0, taken / repetition, taken * repetition)
        taken = torch.where(seen, repeated, taken) - frequency * counts
        taken = torch.where(counts > 0, taken - presence, taken)
        logits = torch.cat((logits, logits[:1])).index_copy(0, of, taken)[:rows]
    return logits


def _finite(logits: torch.Tensor) -> torch.Tensor:
    return logits.nan_to_num(nan=-math.inf, posinf=_LARGEST, neginf=-math.inf)


def _drawn(logits: torch.Tensor, sampled: SamplingInputs) -> torch.Tensor:
    vocabulary = logits.shape[1]
    top = logits.amax(-1, keepdim=True)
    scores = (logits - top) * sampled.scale[:, None]
    weight = weights(scores)
    ranked = scores.sort(-1, descending=True).values
    last = (sampled.top_k.long() - 1).clamp(0, vocabulary - 1)[:, None]
    least = torch.where(sampled.top_k[:, None] > 0, ranked.gather(1, last), -math.inf)
    kept = ranked >= least
    mass = torch.where(kept, weights(ranked), 0.0).double().cumsum(-1)
    wanted = mass[:, -1:] * sampled.top_p[:, None]
    place = torch.minimum(torch.searchsorted(mass, wanted), kept.sum(-1, keepdim=True) - 1)
    least = torch.where(sampled.top_p[:, None] < 1, ranked.gather(1, place), least)
    least = torch.maximum(least, sampled.least[:, None])
    cumulative = torch.where(scores >= least, weight, 0.0).double().cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    target = uniform(sampled.seed, sampled.positions)[:, None] * total
    found = torch.searchsorted(cumulative, target, right=True)
    # A product rounded up to the whole mass finds nothing: the last token with any mass is meant.
    drawn = torch.minimum(found, torch.searchsorted(cumulative, total)).clamp(max=vocabulary - 1)[:, 0]
    plainly = (sampled.scale == 0) | (top[:, 0] == -math.inf)
    return torch.where(plainly, logits.argmax(-1), drawn)


def _logprobs(logits: torch.Tensor) -> torch.Tensor:
    top = logits.amax(-1, keepdim=True)
    total = weights((logits - top) * math.log2(math.e)).double().sum(-1, keepdim=True)
    return logits.double() - top.double() - total.log()
