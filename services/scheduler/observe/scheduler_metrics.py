"""The scheduler's counts as metrics, and how long its steps took."""

from collections.abc import Callable, Iterator

from noria.proto.execution import StepDone
from noria.proto.scheduling import Capacity
from noria.services.scheduler.core.state.scheduler_view import SchedulerView
from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import Histogram, MetricValue, TenantLabels
from noria.shared.telemetry.spans import (
    ATTRIBUTE_CLASS,
    ATTRIBUTE_DIRECTION,
    ATTRIBUTE_GROUP,
    ATTRIBUTE_STATE,
    ATTRIBUTE_TENANT,
)
from noria.shared.telemetry.telemetry import MetricSource


class SchedulerMetrics(MetricSource):
    """Metrics of a scheduler. capacity: what admission may count on. tenants_max: how many tenants have figures of their own.

    clock: the present time, in nanoseconds.
    """

    def __init__(
        self, view: SchedulerView, capacity: Callable[[], Capacity], tenants_max: int, clock: Callable[[], int]
    ) -> None:
        self._view = view
        self._capacity_now = capacity
        self._clock = clock
        self._labels = TenantLabels(tenants_max)
        self._times = Histogram(instruments.STEP_TIME)
        self._tokens = Histogram(instruments.STEP_TOKENS)
        self._observed_tokens = 0

    def step(self, done: StepDone) -> None:
        """Observe a step whose results were taken."""
        tokens = self._view.tokens - self._observed_tokens
        self._observed_tokens += tokens
        if tokens:
            self._times.observe(done.compute_us / 1e6)
            self._tokens.observe(tokens)

    def values(self) -> Iterator[MetricValue]:
        """The present values of all metrics."""
        yield from self._requests()
        yield from self._capacity()
        yield from self._blocks()
        yield from self._shares()
        yield from self._counters()
        yield self._times.value()
        yield self._tokens.value()

    def _requests(self) -> Iterator[MetricValue]:
        counts, waiting, now_ns = self._view.counts(), list(self._view.waiting()), self._clock()
        again = sum(request.started for request in waiting)
        oldest_ns = min((request.received_ns for request in waiting), default=now_ns)
        for state, number in (
            ("running", counts.running),
            ("waiting", counts.waiting - again),
            ("preempted", again),
        ):
            yield MetricValue(instruments.REQUESTS, number, ((ATTRIBUTE_STATE, state),))
        yield MetricValue(instruments.QUEUE_OLDEST, (now_ns - oldest_ns) / 1e9)

    def _capacity(self) -> Iterator[MetricValue]:
        counts = self._view.counts()
        yield MetricValue(instruments.SLOTS, counts.slots_used, ((ATTRIBUTE_STATE, "used"),))
        yield MetricValue(instruments.SLOTS, counts.slots_free, ((ATTRIBUTE_STATE, "free"),))
        for each in self._capacity_now().classes:
            yield MetricValue(
                instruments.PREDICTED_START, each.start_ms / 1e3, ((ATTRIBUTE_CLASS, each.traffic_class),)
            )

    def _blocks(self) -> Iterator[MetricValue]:
        """Blocks by group and state; none while there is no executor."""
        if not self._view.has_executor:
            return
        held = there = 0
        for group, count in enumerate(self._view.blocks()):
            held += count.used + count.shared
            there += count.used + count.shared + count.cached + count.blank
            for state, number in (
                ("blank", count.blank),
                ("used", count.used),
                ("shared", count.shared),
                ("cached", count.cached),
                ("host", count.host),
            ):
                yield MetricValue(
                    instruments.CACHE_BLOCKS, number, ((ATTRIBUTE_GROUP, group), (ATTRIBUTE_STATE, state))
                )
        yield MetricValue(instruments.CACHE_USAGE, held / there if there else 0.0)

    def _shares(self) -> Iterator[MetricValue]:
        """The service of each class and tenant; nothing under policies that do not share."""
        for each in self._view.standings():
            whose = ((ATTRIBUTE_CLASS, each.traffic_class), (ATTRIBUTE_TENANT, self._labels.of(each.tenant)))
            yield MetricValue(instruments.SHARE_SERVICE, each.charged, whose)
            yield MetricValue(instruments.SHARE_COUNTER, each.virtual, whose)
            yield MetricValue(instruments.SHARE_WAITING, each.waiting, whose)

    def _counters(self) -> Iterator[MetricValue]:
        counters = self._view.counters()
        for metric, number in (
            (instruments.EPOCHS, self._view.counts().epoch),
            (instruments.STEPS, counters.steps),
            (instruments.STEPS_FAILED, counters.failed_steps),
            (instruments.TOKENS_COMPUTED, counters.tokens),
            (instruments.TOKENS_SAMPLED, counters.output_tokens),
            (instruments.TOKENS_WASTED, counters.wasted_tokens),
            (instruments.CACHE_PROMPT_TOKENS, counters.prompt_tokens),
            (instruments.CACHE_HIT_TOKENS, counters.hit_tokens),
            (instruments.CACHE_RECOVERED_TOKENS, counters.recovered_tokens),
            (instruments.CACHE_RECOMPUTED_TOKENS, counters.recomputed_tokens),
            (instruments.CACHE_EVICTIONS, counters.evictions),
            (instruments.CACHE_RESETS, counters.resets),
            (instruments.CACHE_RESET_TOKENS, counters.reset_tokens),
            (instruments.CACHE_SWAPPED_BLOCKS, counters.swapped_blocks),
        ):
            yield MetricValue(metric, number)
        yield MetricValue(instruments.CACHE_SWAPS, counters.swaps_out, ((ATTRIBUTE_DIRECTION, "out"),))
        yield MetricValue(instruments.CACHE_SWAPS, counters.swaps_in, ((ATTRIBUTE_DIRECTION, "in"),))
