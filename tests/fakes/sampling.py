"""Builds sampler inputs by hand, and sampled results without log-probabilities."""

from collections.abc import Sequence

import numpy as np

from noria.proto.sampling import Sampling
from noria.services.executor.plan.sampling_metadata import PARAMETERS, SamplerOutput, SamplingMetadata, record


def drawn(ids: Sequence[int]) -> SamplerOutput:
    """Return sampled ids as a model runner does when no row asks for log-probabilities."""
    empty = np.zeros((len(ids), 0))
    return SamplerOutput(
        np.array(ids, np.int64), np.zeros(0, np.float32), empty.astype(np.int32), empty.astype(np.float32)
    )


def sampler(
    sampling: Sequence[Sampling],
    vocabulary: int,
    *,
    first_position: int = 0,
    prompts: Sequence[Sequence[int]] = (),
    outputs: Sequence[Sequence[int]] = (),
    banned: Sequence[tuple[int, int]] = (),
) -> SamplingMetadata:
    """Return sampler rows at positions from `first_position` on. prompts, outputs: the tokens that penalties count."""
    rows = len(sampling)
    prompts, outputs = prompts or [()] * rows, outputs or [()] * rows
    histories = [(*prompt, *output) for prompt, output in zip(prompts, outputs, strict=True)]
    biases = [
        [*each.logit_bias, *((token, -np.inf) for at, token in banned if at == row)]
        for row, each in enumerate(sampling)
    ]
    return SamplingMetadata(
        rows=np.arange(rows),
        slots=np.arange(rows),
        positions=np.arange(first_position, first_position + rows),
        parameters=np.array([record(each, vocabulary) for each in sampling], PARAMETERS),
        history=np.array([token for each in histories for token in each], np.int32),
        history_starts=starts([len(each) for each in histories]),
        prompts=np.array([len(each) for each in prompts], np.int64),
        pending_at=np.zeros(0, np.int64),
        pending_slots=np.zeros(0, np.int64),
        pending_positions=np.zeros(0, np.int64),
        bias_ids=np.array([token for each in biases for token, _ in each], np.int32),
        bias_values=np.array([value for each in biases for _, value in each], np.float32),
        bias_starts=starts([len(each) for each in biases]),
    )


def starts(lengths: Sequence[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the start of each part, and the end of the last one."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.array(lengths, np.int64))))
