"""Where what a step samples lies in one buffer, so that one copy brings it to the host."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from noria.services.executor.cuda.layout.step_sizes import Sizes
from noria.services.executor.plan.sampling_metadata import Drawn, Sampler, wanted_logprobs


@dataclass(slots=True, eq=False)
class Outputs:
    """By sampled row: ids [S]; log-probabilities [S], and those of the likeliest tokens [S, N], where any row asks.

    experts [1]: how many experts' weights steps have read so far (`ExpertsRead`).
    """

    ids: torch.Tensor
    logprobs: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    experts: torch.Tensor


def output_bytes(sizes: Sizes) -> int:
    """Bytes of a buffer for the outputs of steps of some sizes."""
    return 4 * sum(_counts(sizes))


def outputs(sizes: Sizes, buffer: torch.Tensor) -> Outputs:
    """The outputs in a buffer of bytes."""
    whole = buffer[: output_bytes(sizes)].view(torch.int32)
    ids, shares, top_ids, top_shares, experts = torch.split(whole, _counts(sizes))
    width = max(sizes.logprobs, 0)
    return Outputs(
        ids,
        shares.view(torch.float32),
        top_ids.view(sizes.samples, width),
        top_shares.view(torch.float32).view(sizes.samples, width),
        experts,
    )


def drawn(sizes: Sizes, buffer: NDArray[np.uint8], sampler: Sampler) -> Drawn:
    """What was sampled of a step's rows, without padding, in arrays of their own."""
    found, rows, most = outputs(sizes, torch.from_numpy(buffer)), len(sampler.rows), wanted_logprobs(sampler)
    told, width = rows if most >= 0 else 0, max(most, 0)
    return Drawn(
        found.ids[:rows].numpy().astype(np.int64),
        found.logprobs[:told].numpy().copy(),
        found.top_ids[:told, :width].numpy().copy(),
        found.top_logprobs[:told, :width].numpy().copy(),
    )


def experts_read(sizes: Sizes, buffer: NDArray[np.uint8]) -> int:
    """How many experts' weights steps have read so far."""
    return int(outputs(sizes, torch.from_numpy(buffer)).experts[0])


def _counts(sizes: Sizes) -> list[int]:
    told = sizes.samples if sizes.logprobs >= 0 else 0
    return [sizes.samples, told, told * max(sizes.logprobs, 0), told * max(sizes.logprobs, 0), 1]
