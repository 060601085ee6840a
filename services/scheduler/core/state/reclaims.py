"""What streams give back: the blocks of those that were forgotten while steps touched them, and what each cost in all.

Told when no step touches a stream any more, which may be long after it was forgotten.
"""

from collections.abc import Callable, Iterable

from noria.proto.scheduling import Reclaimed, Spent
from noria.services.scheduler.core.interface.events import SchedulerReply
from noria.services.scheduler.core.state.counters import SchedulerCounters
from noria.services.scheduler.core.state.in_flight_steps import InFlightSteps, RetiredBlocks
from noria.services.scheduler.core.state.request import Request


class ReclaimReports:
    """Tells of blocks and costs by `tell`."""

    def __init__(
        self, in_flight: InFlightSteps, counters: SchedulerCounters, tell: Callable[[SchedulerReply], None]
    ) -> None:
        self._in_flight = in_flight
        self._counters = counters
        self._tell = tell

    def spent(self, request: Request) -> None:
        """No step touches a forgotten request any more: tell what it cost."""
        whose = request.asked.submission
        self._tell(
            Spent(
                request.stream,
                request.progress.computed_tokens,
                request.progress.wasted_tokens,
                request.cache.block_us,
                whose.tenant,
                whose.traffic_class,
            )
        )

    def freed(self, ended: Iterable[RetiredBlocks], now_ns: int) -> None:
        """No step touches these blocks any more: tell of those whose request was withdrawn."""
        for request, blocks in ended:
            if request.life.withdrawn_ns is not None:
                steps = self._in_flight.done - request.life.withdrawn_step
                delay_us = (now_ns - request.life.withdrawn_ns) // 1000
                self.reclaimed(request, blocks.blocks, steps, delay_us)

    def reclaimed(self, request: Request, blocks: int, steps: int, delay_us: int) -> None:
        """A withdrawn or ended stream has given back its last block."""
        self._tell(Reclaimed(request.stream, blocks, steps, delay_us))
        counters = self._counters
        counters.reclaims += 1
        counters.reclaim_us_total += delay_us
        counters.reclaim_us_max = max(counters.reclaim_us_max, delay_us)
        counters.reclaim_steps_max = max(counters.reclaim_steps_max, steps)
