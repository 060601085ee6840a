"""What the scheduler's core stands at, as metrics, and how long steps took."""

from collections.abc import Iterator

from noria.proto.execution import StepDone
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.state.scheduler_state import SchedulerState
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
    """Metrics of a board. tenants_max: how many tenants have figures of their own."""

    def __init__(self, core: Scheduler, tenants_max: int) -> None:
        self._core = core
        self._board: SchedulerState = core.board
        self._labels = TenantLabels(tenants_max)
        self._times = Histogram(instruments.STEP_TIME)
        self._tokens = Histogram(instruments.STEP_TOKENS)
        self._told_tokens = 0

    def step(self, done: StepDone) -> None:
        """A step was computed, and its results were taken."""
        tokens = self._board.counters.tokens - self._told_tokens
        self._told_tokens += tokens
        if tokens:
            self._times.observe(done.compute_us / 1e6)
            self._tokens.observe(tokens)

    def values(self) -> Iterator[MetricValue]:
        """What they stand at."""
        yield from self._requests()
        yield from self._capacity()
        yield from self._blocks()
        yield from self._shares()
        yield from self._counters()
        yield self._times.value()
        yield self._tokens.value()

    def _requests(self) -> Iterator[MetricValue]:
        board = self._board
        again = sum(request.started_ns is not None for request in board.waiting)
        oldest_ns = min((request.received_ns for request in board.waiting), default=board.now_ns)
        for state, number in (
            ("running", board.running),
            ("waiting", len(board.waiting) - again),
            ("preempted", again),
        ):
            yield MetricValue(instruments.REQUESTS, number, ((ATTRIBUTE_STATE, state),))
        yield MetricValue(instruments.QUEUE_OLDEST, (board.now_ns - oldest_ns) / 1e9)

    def _capacity(self) -> Iterator[MetricValue]:
        slots = self._board.slots
        yield MetricValue(instruments.SLOTS, slots.used, ((ATTRIBUTE_STATE, "used"),))
        yield MetricValue(instruments.SLOTS, slots.free, ((ATTRIBUTE_STATE, "free"),))
        for each in self._core.capacity().classes:
            yield MetricValue(
                instruments.PREDICTED_START, each.start_ms / 1e3, ((ATTRIBUTE_CLASS, each.traffic_class),)
            )

    def _blocks(self) -> Iterator[MetricValue]:
        """Blocks by group and state; none while there is no executor."""
        memory = self._board.memory
        if memory is None:
            return
        held = there = 0
        for group, count in enumerate(memory.counts()):
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
        """Who was served how much; nothing under policies that do not share."""
        for each in self._board.policy.standings():
            whose = ((ATTRIBUTE_CLASS, each.traffic_class), (ATTRIBUTE_TENANT, self._labels.of(each.tenant)))
            yield MetricValue(instruments.SHARE_SERVICE, each.charged, whose)
            yield MetricValue(instruments.SHARE_COUNTER, each.virtual, whose)
            yield MetricValue(instruments.SHARE_WAITING, each.waiting, whose)

    def _counters(self) -> Iterator[MetricValue]:
        counters = self._board.counters
        for metric, number in (
            (instruments.EPOCHS, self._board.lane.epoch),
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
