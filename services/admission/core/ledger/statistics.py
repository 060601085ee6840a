"""What admission has done so far: the terms of the conservation law, refusals by reason, how fast blocks come back."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from noria.proto.base import End
from noria.proto.frontdoor import Code
from noria.proto.scheduling import Reclaims
from noria.services.admission.core.tenants.class_totals import ClassTotals, StreamMeasure

_STEPS_SHOWN_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class AdmissionTotals:
    """Streams accepted and ended ever, and requests refused: summed over all tenants and classes.

    accepted = finished + cancelled + expired + shed + failed + in flight holds after every event. prompt_tokens: of
    accepted requests; output_tokens: of streams that ended.
    """

    accepted: int
    ended: dict[End, int]
    rejected: dict[Code, int]
    prompt_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, usage_counters: Iterable[ClassTotals]) -> "AdmissionTotals":
        """Sum the totals of several tenants and classes."""
        class_totals = tuple(usage_counters)
        return cls(
            sum(each.accepted for each in class_totals),
            {end: sum(each.ended[end] for each in class_totals) for end in End},
            {code: sum(each.refused.get(code, 0) for each in class_totals) for code in Code},
            sum(each.prompt_tokens for each in class_totals),
            sum(each.of(StreamMeasure.OUTPUT_TOKENS).total for each in class_totals),
        )

    def as_counts(self, in_flight: int) -> dict[str, int]:
        """The terms of the conservation law by their names in `/debug/state`."""
        return {
            "accepted": self.accepted,
            "finished": self.ended[End.STOP] + self.ended[End.LENGTH],
            "stop": self.ended[End.STOP],
            "length": self.ended[End.LENGTH],
            "cancelled": self.ended[End.CANCELLED],
            "expired": self.ended[End.DEADLINE],
            "shed": self.ended[End.SHED],
            "failed": self.ended[End.ERROR],
            "in_flight": in_flight,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
        }


@dataclass(slots=True, eq=False)
class ReclaimStatistics:
    """How long ended streams kept cache blocks, from withdrawal to the release of the last one; steps is a histogram."""

    count: int = 0
    blocks: int = 0
    steps_max: int = 0
    delay_us_max: int = 0
    delay_us_sum: int = 0
    steps: list[int] = field(default_factory=lambda: [0] * (_STEPS_SHOWN_MAX + 1))

    def add(self, reclaims: Reclaims) -> None:
        """Count one message's entries; the last bin holds everything from its number of steps on."""
        for entry in reclaims.entries:
            self.count += 1
            self.blocks += entry.blocks
            self.steps_max = max(self.steps_max, entry.steps)
            self.delay_us_max = max(self.delay_us_max, entry.delay_us)
            self.delay_us_sum += entry.delay_us
            self.steps[min(entry.steps, _STEPS_SHOWN_MAX)] += 1
