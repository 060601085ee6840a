"""What steps take, in two models: of all steps, and of those that compute prompts.

A processor that computes prompts reads the weights meanwhile; one that only continues sequences waits for the weights and
computes meanwhile. So one more sequence costs beside prompts what it does not cost without them, and one linear model of both is
off by a fifth where many sequences continue beside a prompt, which is where steps are sized. Knows numbers only.
"""

import math
from typing import Final

from noria.proto.scheduling import StepTime
from noria.services.scheduler.core.predict.step_time_model import StepTimeModel

# Fewer steps with prompts say less of them than all steps do.
_TRUSTED_AFTER: Final = 32
# One step in ten may take longer, compared with its prediction, than `stretch` says.
_EXCEED: Final = 0.1
_PACE: Final = 0.05
_STRETCH_MAX: Final = 1.5


class StepTimePredictor:
    """Learns from each step. stretch: how many times their prediction nine in ten steps with prompts take, at least one."""

    def __init__(self) -> None:
        self.all: Final = StepTimeModel()
        self._prompts: Final = StepTimeModel()
        self.stretch = 1.0

    def observe(self, query_tokens: int, cache_tokens: int, requests: int, compute_us: int, pairs: int) -> None:
        """A step took so long; see `StepTimeModel.observe`."""
        if query_tokens > requests and compute_us > 0:
            predicted_us = self.predict_us(query_tokens, cache_tokens, requests, pairs)
            if self._prompts.steps >= _TRUSTED_AFTER:
                self._follow(compute_us / predicted_us)
            self._prompts.observe(query_tokens, cache_tokens, requests, compute_us, pairs)
        self.all.observe(query_tokens, cache_tokens, requests, compute_us, pairs)

    def with_prompts(self) -> StepTime:
        """The present coefficients for steps that compute prompts."""
        return self._model(prompts=True).coefficients()

    def predict_us(self, query_tokens: float, cache_tokens: float, requests: float, pairs: float = 0.0) -> float:
        """The predicted time of a step; 0 before anything was learned."""
        model = self._model(prompts=query_tokens > requests)
        return model.predict_us(query_tokens, cache_tokens, requests, pairs)

    def _model(self, *, prompts: bool) -> StepTimeModel:
        return self._prompts if prompts and self._prompts.steps >= _TRUSTED_AFTER else self.all

    def _follow(self, ratio: float) -> None:
        """A quantile, by steps up and down in the proportion of those that exceed it to those that do not."""
        change = _PACE * (1.0 - _EXCEED) if ratio > self.stretch else -_PACE * _EXCEED
        self.stretch = min(max(self.stretch * math.exp(change), 1.0), _STRETCH_MAX)
