"""What the executor knows of the stream in one slot."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from noria.proto.base import Stream, TokenLogprob
from noria.proto.sampling import Sampling


@dataclass(slots=True, eq=False)
class SlotState:
    """What is known of the stream in a slot. bias_ids, bias_values: its logit bias.

    cached: positions whose keys and values are in the cache, by what it came with and the steps that have come back.
    likelihoods: of the tokens sampled since it came, if it asks for them; late: those tokens that came when it had left
    the slot.
    """

    stream: Stream
    attempt: int
    sampling: Sampling
    end_ids: tuple[int, ...]
    bias_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    cached: int = 0
    likelihoods: list[TokenLogprob] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
