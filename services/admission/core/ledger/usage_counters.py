"""What has happened to each tenant's streams, by class: counted for the metrics and for the journal, in one act each.

A request is charged once, at its end, however often it was asked for. What a stream cost in computation and cache is known
only when the scheduler has done with it, a step or two later; the scheduler tells that again until it is on record, perhaps
to a later incarnation of ours, and numbers say what is there already.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

from noria.proto.base import End, Stream
from noria.proto.frontdoor import Code
from noria.proto.scheduling import Expenses, Reclaimed, Spent
from noria.services.admission.core.ledger.request import ChoiceRecord, Request, RequestStage
from noria.services.admission.core.tenants.class_totals import (
    ClassTotals,
    MeasureHistogram,
    MeasureKey,
    StreamMeasure,
    TokenUsage,
    UsageKey,
)

_WHOLE: Final = (End.STOP, End.LENGTH)


class CountedCosts(NamedTuple):
    """Which costs are counted: those numbered 1 to `number` of the scheduler process `incarnation`."""

    incarnation: int = 0
    number: int = 0


class UsageCounters:
    """Counters of usage by tenant and class, in the order in which they first occurred.

    class_totals: counts since the journal began. unrecorded: those of them that the journal does not have yet. moved: keys
    whose counts in the journal are spread over several pages. unwritten: usage since the last `take`. costs: the scheduler's
    costs that are counted in it. owes_answer: the scheduler has sent costs since the last `Accounted`. bounds: upper ends of
    the histogram buckets of each measure, without the last.
    """

    def __init__(self, bounds: Mapping[StreamMeasure, tuple[int, ...]]) -> None:
        self.costs = CountedCosts()
        self.owes_answer = False
        self.class_totals: dict[UsageKey, ClassTotals] = {}
        self.unrecorded: dict[UsageKey, ClassTotals] = {}
        self.moved: set[UsageKey] = set()
        self.unwritten: dict[UsageKey, TokenUsage] = {}
        self._bounds = bounds
        self._awaited: dict[Stream, tuple[UsageKey, int]] = {}

    @property
    def awaited(self) -> int:
        """Ended streams whose cost is not known yet."""
        return len(self._awaited)

    def of(self, request: Request) -> UsageKey:
        """The tenant and class that a request counts for."""
        return UsageKey(request.key.tenant, request.traffic_class)

    def recover(self, class_totals: Mapping[UsageKey, ClassTotals]) -> None:
        """Go on from what an earlier incarnation had on record, perhaps with other buckets."""
        for usage_key, each in class_totals.items():
            for measure_key, histogram in each.measured.items():
                histogram.fit(len(self._bounds.get(measure_key.measure, ())) + 1)
            self.class_totals[usage_key] = each

    def accept(self, request: Request) -> None:
        """Count the streams and prompt of an accepted request."""
        for class_totals in self._totals_of(self.of(request)):
            class_totals.accepted += len(request.choices)
            class_totals.prompt_tokens += request.prompt_tokens

    def refuse(self, usage_key: UsageKey, code: Code) -> None:
        """Count a refused request."""
        for class_totals in self._totals_of(usage_key):
            class_totals.refused[code] = class_totals.refused.get(code, 0) + 1

    def record_tokens(self, request: Request, choice: ChoiceRecord, tokens: int, now_ns: int, *, first: bool) -> None:
        """Count new tokens of a stream, and measure times and intervals; first: the stream had no token before."""
        both = self._totals_of(self.of(request))
        for class_totals in both:
            class_totals.generated += tokens
        if first:
            queue_ns = choice.queue_us * 1000
            self._measure(both, MeasureKey(StreamMeasure.QUEUE), queue_ns)
            self._measure(both, MeasureKey(StreamMeasure.PREFILL), max(now_ns - request.accepted_ns - queue_ns, 0))
            self._measure(both, MeasureKey(StreamMeasure.FIRST_TOKEN), max(now_ns - request.received_ns, 0))
            choice.last_token_ns = now_ns  # what comes with it follows at once
        if following := tokens - first:
            self._measure(both, _INTERVAL, max(now_ns - choice.last_token_ns, 0) // tokens, following)
        choice.last_token_ns = now_ns

    def end(self, request: Request, choice: ChoiceRecord, end: End, now_ns: int, *, submitted: bool) -> None:
        """Count an ended stream; submitted: the scheduler has it and will send its cost."""
        usage_key = self.of(request)
        both = self._totals_of(usage_key)
        for class_totals in both:
            class_totals.ended[end] += 1
        if choice.first_token_ns is not None:
            self._measure(both, MeasureKey(StreamMeasure.DECODE), max(now_ns - choice.first_token_ns, 0))
        self._measure(both, MeasureKey(StreamMeasure.WHOLE, end), max(now_ns - request.received_ns, 0))
        self._measure(both, MeasureKey(StreamMeasure.PROMPT_TOKENS), request.prompt_tokens)
        self._measure(both, MeasureKey(StreamMeasure.OUTPUT_TOKENS), len(choice.ids))
        if submitted:
            self._awaited[choice.stream] = (usage_key, 0)

    def close(self, request: Request) -> int:
        """Count the usage of a request whose streams have all ended. Returns the tokens that it is charged for."""
        usage = TokenUsage(requests=1, output_tokens=sum(len(choice.ids) for choice in request.choices))
        if produced_output(request):
            usage.prompt_tokens = request.prompt_tokens
            usage.cached_tokens = min(choice.cached_tokens for choice in request.choices)
        elif (first := request.choices[0].stream) in self._awaited:
            # Of a prompt that came to nothing, what was computed counts.
            self._awaited[first] = (self.of(request), request.prompt_tokens)
        self._use(self.of(request), usage)
        return usage.prompt_tokens + usage.output_tokens

    def uncounted_costs(self, incarnation: int, expenses: Expenses) -> tuple[Spent, ...]:
        """The costs in a message of the scheduler that are not counted yet, which are taken as counted from now on."""
        known = self.costs.number if self.costs.incarnation == incarnation else 0
        entries = expenses.entries[max(known + 1 - expenses.first, 0) :]
        self.costs = CountedCosts(incarnation, max(known, expenses.first + len(expenses.entries) - 1))
        self.owes_answer = True
        return entries

    def record_cost(self, spent: Spent, request: Request | None) -> tuple[str, int]:
        """Count the cost of a stream that the scheduler has finished; request: None if it has left the ledger.

        Returns the tenant and what it owes for the beginning of a prompt that came to nothing.
        """
        known = self._awaited.pop(spent.stream, None)
        if known is None:
            # It goes on under a new attempt, or it ended in an earlier incarnation, or before the scheduler was there again.
            unused = request is not None and request.stage is RequestStage.ENDED and not produced_output(request)
            first = request is not None and request.choices[0].stream == spent.stream
            tokens = request.prompt_tokens if request is not None and unused and first else 0
            known = (UsageKey(spent.tenant, spent.traffic_class), tokens)
        usage_key, prompt_tokens = known
        owed_tokens = min(prompt_tokens, spent.computed_tokens)
        usage = TokenUsage(
            prompt_tokens=owed_tokens,
            computed_tokens=spent.computed_tokens,
            wasted_tokens=spent.wasted_tokens,
            block_us=spent.block_us,
        )
        self._use(usage_key, usage)
        return usage_key.tenant, owed_tokens

    def record_reclaim(self, entry: Reclaimed) -> None:
        """Measure the delay from the end of a running stream to the release of its last block, if its tenant is known."""
        known = self._awaited.get(entry.stream)
        if known is None:
            return
        both = self._totals_of(known[0])
        self._measure(both, MeasureKey(StreamMeasure.RECLAIM), entry.delay_us * 1000)
        for class_totals in both:
            class_totals.reclaim_us_max = max(class_totals.reclaim_us_max, entry.delay_us)

    def forget_awaited(self) -> None:
        """Wait no longer for costs of ended streams: the scheduler that knew them has died."""
        self._awaited.clear()

    def take(self) -> dict[UsageKey, TokenUsage]:
        """Usage by tenant and class since the last call."""
        taken, self.unwritten = self.unwritten, {}
        return taken

    def written(self, *, fold: bool) -> None:
        """Note that the journal has all counts; fold: as one row for each tenant and class."""
        self.moved.update(self.unrecorded)
        self.unrecorded.clear()
        if fold:
            self.moved.clear()

    def _totals_of(self, usage_key: UsageKey) -> tuple[ClassTotals, ClassTotals]:
        ever, lately = self.class_totals.get(usage_key), self.unrecorded.get(usage_key)
        if ever is None:
            ever = self.class_totals[usage_key] = ClassTotals()
        if lately is None:
            lately = self.unrecorded[usage_key] = ClassTotals()
        return ever, lately

    def _measure(
        self, both: tuple[ClassTotals, ClassTotals], measure_key: MeasureKey, number: int, times: int = 1
    ) -> None:
        bounds = self._bounds.get(measure_key.measure, ())
        place = bisect_left(bounds, number)
        for class_totals in both:
            histogram = class_totals.measured.get(measure_key)
            if histogram is None:
                histogram = class_totals.measured[measure_key] = MeasureHistogram([0] * (len(bounds) + 1))
            histogram.counts[place] += times
            histogram.total += number * times

    def _use(self, usage_key: UsageKey, usage: TokenUsage) -> None:
        for class_totals in self._totals_of(usage_key):
            class_totals.used.add(usage)
        self.unwritten.setdefault(usage_key, TokenUsage()).add(usage)


_INTERVAL: Final = MeasureKey(StreamMeasure.INTERVAL)


def produced_output(request: Request) -> bool:
    """Whether a request got as far as a token or came to an end of its own."""
    return any(choice.first_token_ns is not None or choice.end in _WHOLE for choice in request.choices)
