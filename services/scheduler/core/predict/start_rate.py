"""How fast waiting requests were started lately: the base of the prediction of a start.

Counted only while some wait, and decayed by starts, not by time, so that a pause changes nothing and a standstill shows. Where
slots hold requests up they start one by one as others end, whatever their length; where the token budget does, by their prompt
tokens; the share of each is learned from what the steps were held up by.
"""

import math
from dataclasses import dataclass
from typing import Final

_KEPT: Final = 1.0 - 1.0 / 96
# One wait in five may exceed what the margin allows.
_EXCEED: Final = 0.2
_STEP: Final = 0.05
# Below one where waits are foretold too long: the pace lags behind while the queue grows or shrinks.
_MARGIN_MIN: Final = 0.6
_MARGIN_MAX: Final = 4.0
_WORTH_NS: Final = 20_000_000


@dataclass(slots=True)
class StartRate:
    """Starts of one class, or of all.

    spent_ns, requests, tokens: time in which some waited, and who was started in it. by_slots: share of that time in
    which slots, not tokens, were what lacked. margin: the factor by which all but one wait in five stay below what was
    foretold; it rises at once and falls slowly.
    """

    spent_ns: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0
    slots_ns: float = 0.0
    margin: float = 1.2

    def wait(self, spent_ns: int, *, by_slots: bool) -> None:
        """Time passed while some waited."""
        self.spent_ns += spent_ns
        if by_slots:
            self.slots_ns += spent_ns

    def start(self, tokens: int, waited_ns: int, foreseen_ns: int) -> None:
        """Record that a request was started."""
        if foreseen_ns > _WORTH_NS:
            exceeds = waited_ns > self.margin * foreseen_ns
            change = _STEP * (1.0 - _EXCEED) if exceeds else -_STEP * _EXCEED
            self.margin = min(max(self.margin * math.exp(change), _MARGIN_MIN), _MARGIN_MAX)
        self.spent_ns *= _KEPT
        self.slots_ns *= _KEPT
        self.requests = self.requests * _KEPT + 1.0
        self.tokens = self.tokens * _KEPT + tokens

    @property
    def gap_ns(self) -> float:
        """Time from one start to the next while some waited, whatever held them up."""
        return self.spent_ns / self.requests if self.requests else 0.0

    @property
    def by_slots(self) -> float:
        """The share of that time in which slots were what lacked."""
        return self.slots_ns / self.spent_ns if self.spent_ns else 0.0

    @property
    def request_ns(self) -> float:
        """Further wait for each request ahead."""
        return self.slots_ns / self.requests if self.requests else 0.0

    @property
    def token_ns(self) -> float:
        """Further wait for each prompt token of requests ahead."""
        return (self.spent_ns - self.slots_ns) / self.tokens if self.tokens else 0.0
