"""How large a step's arrays on a device are: exactly as a batch needs them, or padded.

Pure: numpy only. Attention is cut into work of two kinds: tiles of query tokens of a slice of several tokens, each over
all its keys; and splits of the keys of a slice of one token, which are joined afterwards. A split is always the same
positions, so a decode's result does not depend on who else is in the step.
"""

from typing import Final

import msgspec
import numpy as np

from noria.proto.sampling import LOGPROBS_MAX
from noria.services.executor.plan.batch import Batch, first_seen
from noria.services.executor.plan.limits import ATTENTION_SPAN_TOKENS, Integers
from noria.services.executor.plan.sampling_metadata import SamplingMetadata, wanted_logprobs

SPLIT_TOKENS: Final = ATTENTION_SPAN_TOKENS
"""Keys of a split: positions k * SPLIT_TOKENS … (k + 1) * SPLIT_TOKENS - 1 of a sequence."""


class GroupSizes(msgspec.Struct, frozen=True):
    """One group's sizes: entries of a slice's table, and splits of all single tokens."""

    entries: int
    splits: int


class StepSizes(msgspec.Struct, frozen=True):
    """Counts of all that a step has, each at least what its batch needs.

    tokens: query tokens. slices; singles: those of one token. tiles: of all others. samples: sampled rows. counted: of
    these, rows with penalties. history: tokens that penalties count; pending: of these, still being computed. biases:
    numbers added to logits. logprobs: how many of the likeliest tokens are told, -1 for none.
    """

    tokens: int
    slices: int
    singles: int
    tiles: int
    samples: int
    groups: tuple[GroupSizes, ...]
    counted: int = 0
    history: int = 0
    pending: int = 0
    biases: int = 0
    logprobs: int = -1


def needed(batch: Batch, tile_tokens: int) -> StepSizes:
    """The exact sizes of a batch. tile_tokens: query tokens that a tile of attention takes."""
    slices = batch.slices
    single = slices.lengths == 1
    ends = (slices.starts + slices.lengths)[single]
    groups = tuple(
        GroupSizes(pages.table.shape[1], int(split_counts(ends, pages.window, SPLIT_TOKENS).sum()))
        for pages in batch.pages
    )
    sizes = StepSizes(
        tokens=len(batch.token_ids),
        slices=len(slices.starts),
        singles=int(single.sum()),
        tiles=int(tile_counts(slices.lengths[~single], tile_tokens).sum()),
        samples=0,
        groups=groups,
    )
    return sizes if batch.sampler is None else _sampling(sizes, batch.sampler)


def _sampling(sizes: StepSizes, sampler: SamplingMetadata) -> StepSizes:
    return msgspec.structs.replace(
        sizes,
        samples=len(sampler.rows),
        counted=int((np.diff(sampler.history_starts) > 0).sum()),
        history=len(sampler.history),
        pending=len(sampler.pending_at),
        biases=len(sampler.bias_ids),
        logprobs=LOGPROBS_MAX if (most := wanted_logprobs(sampler)) > 0 else most,
    )


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
    """Owner and rank of each piece: for counts 2, 3 owners 0 0 1 1 1 and ranks 0 1 0 1 2."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
