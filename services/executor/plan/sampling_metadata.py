"""The input and output of sampling a step: parameters by row, tokens that penalties count, sampled ids.

Pure: numpy only. A row's parameters are one record, laid out as the native kernels read it.
"""

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.proto.base import TokenLogprob
from noria.proto.sampling import LOGPROBS_MAX, TEMPERATURE_MIN, Sampling
from noria.services.executor.plan.limits import Integers

RECENT_TOKENS: Final = 8
"""Sampled tokens that a model runner remembers of each slot: more than steps may be in flight."""

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

PARAMETERS: Final = np.dtype(
    [
        ("top_p", np.float64),
        ("seed", np.uint64),
        ("scale", np.float32),
        ("least", np.float32),
        ("top_k", np.int32),
        ("repetition", np.float32),
        ("presence", np.float32),
        ("frequency", np.float32),
        ("logprobs", np.int32),
    ],
    align=True,
)
"""How a row is sampled.

scale: bits per unit of a logit, log2(e) / temperature; 0 is greedy. least: min_p as the lowest score kept, in bits;
-inf is off. top_k: 0 is off. logprobs: how many of the likeliest tokens to tell with the sampled one, -1 for neither.
"""

Parameters = np.ndarray[tuple[int], np.dtype[np.void]]
Record = tuple[float, int, float, float, int, float, float, float, int]


class SamplingMetadata(msgspec.Struct, frozen=True):
    """What is sampled, by row [S]: query token, slot, parameters, and the position of the token to come.

    A position is the counter of its row's randomness. history: for row i, history[history_starts[i] :
    history_starts[i + 1]] are the ids that its penalties count, the first prompts[i] of them of the prompt; nothing for
    rows without penalties. Those at `pending_at` are still being computed when this is laid out: RecentTokens fills them
    in, by slot and position. bias_ids, bias_values, bias_starts: what is added to logits, likewise; -inf bans.
    """

    rows: Integers
    slots: Integers
    positions: Integers
    parameters: Parameters
    history: Ids
    history_starts: Integers
    prompts: Integers
    pending_at: Integers
    pending_slots: Integers
    pending_positions: Integers
    bias_ids: Ids
    bias_values: Floats
    bias_starts: Integers


class SamplerOutput(msgspec.Struct, frozen=True):
    """What a step sampled: ids [S] and, where asked for, log-probabilities [S] and those of the likeliest tokens [S, N].

    A row that asked for fewer than N, or for none, has only so many in the last two; the rest means nothing.
    """

    ids: Integers
    logprobs: Floats
    top_ids: Ids
    top_logprobs: Floats

    def likelihood(self, row: int, wanted: int) -> TokenLogprob:
        """The log-probability of one row's token and of its `wanted` likeliest tokens."""
        top = zip(self.top_ids[row, :wanted].tolist(), self.top_logprobs[row, :wanted].tolist(), strict=True)
        return TokenLogprob(float(self.logprobs[row]), tuple(top))


class RecentTokens:
    """The last tokens sampled in each slot, kept where steps are computed, before the shell knows them."""

    def __init__(self, max_slots: int) -> None:
        self._ids = np.zeros((max_slots, RECENT_TOKENS), np.int32)

    def complete(self, sampler: SamplingMetadata) -> None:
        """Write the tokens into a history that were not known when it was laid out."""
        if len(sampler.pending_at):
            places = sampler.pending_positions % RECENT_TOKENS
            sampler.history[sampler.pending_at] = self._ids[sampler.pending_slots, places]

    def note(self, sampler: SamplingMetadata, ids: Integers) -> None:
        """Keep the ids [S] that a step sampled."""
        self._ids[sampler.slots, sampler.positions % RECENT_TOKENS] = ids


def record(sampling: Sampling, vocabulary: int) -> Record:
    """A stream's sampling parameters as one record, in the order of PARAMETERS."""
    temperature = max(sampling.temperature, TEMPERATURE_MIN)
    return (
        sampling.top_p,
        (sampling.seed or 0) & 0xFFFF_FFFF_FFFF_FFFF,
        math.log2(math.e) / temperature if sampling.temperature > 0 else 0.0,
        math.log2(sampling.min_p) if sampling.min_p > 0 else -math.inf,
        sampling.top_k if 0 < sampling.top_k < vocabulary else 0,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        -1 if sampling.logprobs is None else min(sampling.logprobs, LOGPROBS_MAX, vocabulary),
    )


def wanted_logprobs(sampler: SamplingMetadata) -> int:
    """The most log-probabilities that any row asks for; -1 when none asks."""
    return int(sampler.parameters["logprobs"].max(initial=-1))
