"""Counters and histograms of the streams of one tenant in one traffic class.

All numbers are whole, so that sums are exact: times are nanoseconds, sizes tokens. The same form says what has happened ever
and what has happened since it was last put on record. Where the buckets of a distribution end is not known here.
"""

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import NamedTuple

from noria.proto.base import End
from noria.proto.frontdoor import Code


class UsageKey(NamedTuple):
    """The tenant and traffic class that usage is counted for."""

    tenant: str
    traffic_class: str


class StreamMeasure(IntEnum):
    """What is measured of a stream; the journal stores the number.

    QUEUE: submission to its first step. PREFILL: that to its first token. FIRST_TOKEN: receipt to the first token.
    INTERVAL: one token to the next. DECODE: the first token to the end. RECLAIM: the end of a running stream to the
    return of its last block. WHOLE: receipt to the end, whatever its reason. The last two are of streams that ended.
    """

    QUEUE = 1
    PREFILL = 2
    FIRST_TOKEN = 3
    INTERVAL = 4
    DECODE = 5
    RECLAIM = 6
    WHOLE = 7
    PROMPT_TOKENS = 8
    OUTPUT_TOKENS = 9


class MeasureKey(NamedTuple):
    """A measure, and of WHOLE the `End` that it belongs to; 0 for the others."""

    measure: StreamMeasure
    end: int = 0


@dataclass(slots=True)
class MeasureHistogram:
    """A histogram: how many measurements fell into each bucket, the last without a bound, and their sum."""

    counts: list[int]
    total: int = 0

    @property
    def count(self) -> int:
        """The number of measurements."""
        return sum(self.counts)

    def fit(self, buckets: int) -> None:
        """Change the number of buckets; counts of buckets that are dropped go to the last one."""
        surplus = sum(self.counts[buckets:])
        self.counts = self.counts[:buckets] + [0] * (buckets - len(self.counts))
        self.counts[-1] += surplus

    def add(self, other: "MeasureHistogram") -> None:
        """Add another's figures, which have as many buckets."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(slots=True)
class TokenUsage:
    """Tokens, cache and requests used. prompt_tokens: of requests that were begun; cached_tokens: those of them found in the cache.

    output_tokens: what clients got. computed_tokens: query tokens computed, again after preemptions included;
    wasted_tokens: those of them computed after the end. block_us: cache blocks held, times microseconds.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    wasted_tokens: int = 0
    block_us: int = 0

    def add(self, other: "TokenUsage") -> None:
        """Add another's figures to these."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(slots=True)
class ClassTotals:
    """Counts of streams, refusals and tokens, with histograms.

    prompt_tokens: of accepted requests, once for each. generated: tokens that entered the ledger.
    """

    used: TokenUsage = field(default_factory=TokenUsage)
    accepted: int = 0
    ended: dict[End, int] = field(default_factory=lambda: dict.fromkeys(End, 0))
    refused: dict[Code, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    generated: int = 0
    reclaim_us_max: int = 0
    measured: dict[MeasureKey, MeasureHistogram] = field(default_factory=dict)

    def of(self, measure: StreamMeasure, end: int = 0) -> MeasureHistogram:
        """The histogram of a measure, to be read only; an empty one where nothing was measured."""
        return self.measured.get(MeasureKey(measure, end)) or MeasureHistogram([0])

    def add(self, other: "ClassTotals") -> None:
        """Add the counts and histograms of another period."""
        self.used.add(other.used)
        self.accepted += other.accepted
        for end, count in other.ended.items():
            self.ended[end] += count
        for code, count in other.refused.items():
            self.refused[code] = self.refused.get(code, 0) + count
        self.prompt_tokens += other.prompt_tokens
        self.generated += other.generated
        self.reclaim_us_max = max(self.reclaim_us_max, other.reclaim_us_max)
        for measure_key, histogram in other.measured.items():
            known = self.measured.get(measure_key)
            if known is None:
                self.measured[measure_key] = MeasureHistogram(list(histogram.counts), histogram.total)
            else:
                known.add(histogram)

    def check(self, in_flight: int) -> None:
        """Assert that counts of the same streams agree. in_flight: accepted ones that have not ended."""
        assert self.accepted == sum(self.ended.values()) + in_flight
        for end, count in self.ended.items():
            assert self.of(StreamMeasure.WHOLE, end).count == count
        ended = sum(self.ended.values())
        assert self.of(StreamMeasure.PROMPT_TOKENS).count == self.of(StreamMeasure.OUTPUT_TOKENS).count == ended
        begun = self.of(StreamMeasure.FIRST_TOKEN).count
        assert self.of(StreamMeasure.QUEUE).count == self.of(StreamMeasure.PREFILL).count == begun
        assert begun - in_flight <= self.of(StreamMeasure.DECODE).count <= min(begun, ended)
        assert self.of(StreamMeasure.INTERVAL).count + begun == self.generated
        assert self.of(StreamMeasure.OUTPUT_TOKENS).total <= self.generated
