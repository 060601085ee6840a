"""A step's output arrays in one buffer, which one copy brings to the host."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from noria.services.executor.cuda.layout.step_sizes import StepSizes
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata, wanted_logprobs


@dataclass(slots=True, eq=False)
class StepOutputs:
    """What was sampled, by row: ids [S]; where any row asks, log-probabilities [S] and those of the likeliest tokens [S, N].

    experts [1]: how many experts' weights steps have read so far (`ExpertReads`).
    """

    ids: torch.Tensor
    logprobs: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    experts: torch.Tensor


def output_bytes(sizes: StepSizes) -> int:
    """Bytes of a buffer for the outputs of steps of some sizes."""
    return 4 * sum(_counts(sizes))


def outputs(sizes: StepSizes, buffer: torch.Tensor) -> StepOutputs:
    """The outputs in a buffer of bytes."""
    whole = buffer[: output_bytes(sizes)].view(torch.int32)
    ids, shares, top_ids, top_shares, experts = torch.split(whole, _counts(sizes))
    width = max(sizes.logprobs, 0)
    return StepOutputs(
        ids,
        shares.view(torch.float32),
        top_ids.view(sizes.samples, width),
        top_shares.view(torch.float32).view(sizes.samples, width),
        experts,
    )


def drawn(sizes: StepSizes, buffer: NDArray[np.uint8], sampler: SamplingMetadata) -> SamplerOutput:
    """The sampler output of a step, without padding, in arrays of its own."""
    found, rows, most = outputs(sizes, torch.from_numpy(buffer)), len(sampler.rows), wanted_logprobs(sampler)
    with_logprobs, width = rows if most >= 0 else 0, max(most, 0)
    return SamplerOutput(
        found.ids[:rows].numpy().astype(np.int64),
        found.logprobs[:with_logprobs].numpy().copy(),
        found.top_ids[:with_logprobs, :width].numpy().copy(),
        found.top_logprobs[:with_logprobs, :width].numpy().copy(),
    )


def experts_read(sizes: StepSizes, buffer: NDArray[np.uint8]) -> int:
    """How many experts' weights steps have read so far."""
    return int(outputs(sizes, torch.from_numpy(buffer)).experts[0])


def _counts(sizes: StepSizes) -> list[int]:
    with_logprobs = sizes.samples if sizes.logprobs >= 0 else 0
    return [
        sizes.samples,
        with_logprobs,
        with_logprobs * max(sizes.logprobs, 0),
        with_logprobs * max(sizes.logprobs, 0),
        1,
    ]
