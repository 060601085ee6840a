"""Predicts when slots come free, from how much the running requests may still generate. Knows numbers only.

A sequence ends after what is left of its length, or by itself before that, at a rate that is learned. Whoever takes its slot is
not known yet, and ends at the rate at which sequences ended lately. That is far closer than the rate of the last seconds, for
how many run that will soon be through differs from one moment to the next.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_KEPT: Final = 1.0 - 1.0 / 128
# Up to so many sequences are looked at one by one.
_PARTS: Final = 128


@dataclass(slots=True)
class EndRates:
    """How sequences ended lately, by decaying sums.

    tokens: output that they planned in their slots. ends: how many. early: of these, how many before their length.
    Before anybody has ended, a hundredth of an answer of a usual length is assumed: the first real one counts for all.
    """

    tokens: float = 2.56
    ends: float = 0.01
    early: float = 0.01

    def ended(self, tokens: int, *, early: bool) -> None:
        """Count a sequence that ended after so many output tokens, by its length or early."""
        self.tokens = self.tokens * _KEPT + max(tokens, 1)
        self.ends = self.ends * _KEPT + 1.0
        self.early = self.early * _KEPT + early

    @property
    def rate(self) -> float:
        """Ends for each output token, which is for each step of a sequence."""
        return self.ends / self.tokens

    @property
    def early_rate(self) -> float:
        """Early ends for each output token."""
        return self.early / self.tokens


class SlotForecast:
    """The steps to come while no slot is free. left: output tokens that each running sequence may still plan, unordered.

    coming: slots that are free from the next step on, already. step_ns: how long a step takes in which they continue.
    prompt_ns: how much longer each start makes it, and begun_ns what is left of prompts under way, over all steps that
    they take.
    """

    def __init__(
        self,
        left: Iterable[int],
        endings: EndRates,
        *,
        coming: int = 0,
        step_ns: float,
        prompt_ns: float = 0.0,
        begun_ns: float = 0.0,
    ) -> None:
        self._left = sorted(left)
        self._endings = endings
        self._coming = coming
        self._step_ns = step_ns
        self._prompt_ns = prompt_ns
        self._begun_ns = begun_ns
        self._known: dict[float, float] = {}  # classes that share one queue ask the same

    def wait_ns(self, starts: float) -> float:
        """How long until so many slots have come free, the last of them for whoever asks; less than one is a part of that."""
        slots = starts - self._coming
        if starts <= 0:
            return 0.0
        steps = 0.0
        if slots > 0 and self._left:
            if slots not in self._known:
                self._known[slots] = self.steps(slots) if slots >= 1 else self.steps(1.0) * slots
            steps = self._known[slots]
        return steps * self._step_ns + max(starts - 1.0, 0.0) * self._prompt_ns + min(starts, 1.0) * self._begun_ns

    def steps(self, slots: float) -> float:
        """After how many steps so many slots have come free, where some run. Of very many, some are taken together."""
        left, running, endings = self._left, len(self._left), self._endings
        together = -(-running // _PARTS)
        freed, at = 0.0, 0.0
        for place in range(0, running, together):
            count = min(together, running - place)
            end = left[place + count - 1]
            # Who has not ended early yet of those that run now; who came in the others' places; how fast they end.
            alive = math.exp(-endings.early_rate * at)
            first = (running - place) * alive
            rate = endings.early_rate * first + endings.rate * (running - first)
            soon, ends = rate * (end - at), count * alive
            if freed + soon + ends >= slots:
                if count > 1:
                    return at + (end - at) * (slots - freed) / (soon + ends)
                return at + (min((slots - freed) / rate, end - at) if rate else end - at)
            freed += soon + ends
            at = float(end)
        return at + (slots - freed) / (running * endings.rate)
