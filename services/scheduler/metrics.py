"""What the scheduler's core stands at, as metrics: a copy made at most once a second, for the exporter to read."""

from noria.services.scheduler.core.board import Board
from noria.shared import instruments
from noria.shared.metrics import Value
from noria.shared.telemetry import Publication, Telemetry


class BoardMetrics(Publication):
    """Publishes a board."""

    def __init__(self, telemetry: Telemetry, board: Board) -> None:
        self._board = board
        super().__init__(telemetry, instruments.SCHEDULER_METRICS)

    def _values(self) -> tuple[Value, ...]:
        counters = self._board.counters
        return (
            Value(instruments.REQUESTS, len(self._board.waiting), ((instruments.ATTRIBUTE_STATE, "waiting"),)),
            Value(instruments.REQUESTS, self._board.running, ((instruments.ATTRIBUTE_STATE, "running"),)),
            *self._blocks(),
            *self._shares(),
            Value(instruments.CACHE_PROMPT_TOKENS, counters.prompt_tokens),
            Value(instruments.CACHE_HIT_TOKENS, counters.hit_tokens),
            Value(instruments.CACHE_RECOVERED_TOKENS, counters.recovered_tokens),
            Value(instruments.CACHE_RECOMPUTED_TOKENS, counters.recomputed_tokens),
            Value(instruments.CACHE_EVICTIONS, counters.evictions),
            Value(instruments.CACHE_RESETS, counters.resets),
            Value(instruments.CACHE_SWAPS, counters.swaps_out, ((instruments.ATTRIBUTE_DIRECTION, "out"),)),
            Value(instruments.CACHE_SWAPS, counters.swaps_in, ((instruments.ATTRIBUTE_DIRECTION, "in"),)),
            Value(instruments.CACHE_SWAPPED_BLOCKS, counters.swapped_blocks),
        )

    def _blocks(self) -> list[Value]:
        """Blocks by group and state; none while there is no executor."""
        memory = self._board.memory
        return [
            Value(
                instruments.CACHE_BLOCKS,
                number,
                ((instruments.ATTRIBUTE_GROUP, group), (instruments.ATTRIBUTE_STATE, state)),
            )
            for group, count in enumerate(memory.counts() if memory is not None else [])
            for state, number in (
                ("blank", count.blank),
                ("used", count.used),
                ("shared", count.shared),
                ("cached", count.cached),
                ("host", count.host),
            )
        ]

    def _shares(self) -> list[Value]:
        """Who was served how much; nothing under policies that do not share."""
        return [
            Value(
                metric,
                number,
                ((instruments.ATTRIBUTE_CLASS, each.traffic_class), (instruments.ATTRIBUTE_TENANT, each.tenant)),
            )
            for each in self._board.policy.standings()
            for metric, number in (
                (instruments.SHARE_SERVICE, round(each.charged)),
                (instruments.SHARE_COUNTER, round(each.virtual)),
                (instruments.SHARE_WAITING, each.waiting),
            )
        ]
