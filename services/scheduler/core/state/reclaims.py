"""Reports of what streams give back: the blocks of those forgotten while steps touched them, and what each stream cost.

A report is made when no step touches a stream any more, which may be long after it was forgotten.
"""

from collections.abc import Callable, Iterable

from noria.proto.scheduling import Reclaimed, Spent
from noria.services.scheduler.core.interface.events import SchedulerReply
from noria.services.scheduler.core.state.counters import SchedulerCounters
from noria.services.scheduler.core.state.in_flight_steps import InFlightSteps, RetiredBlocks
from noria.services.scheduler.core.state.request import Request


class ReclaimReports:
    """Makes reports about blocks and costs. reply: takes each of them."""

    def __init__(
        self, in_flight: InFlightSteps, counters: SchedulerCounters, reply: Callable[[SchedulerReply], None]
    ) -> None:
        self._in_flight = in_flight
        self._counters = counters
        self._reply = reply

    def spent(self, request: Request) -> None:
        """Report what a forgotten request cost: no step touches it any more."""
        whose = request.asked.submission
        self._reply(
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
        """Report the blocks of withdrawn requests that no step touches any more."""
        for request, blocks in ended:
            if request.life.withdrawn_ns is not None:
                steps = self._in_flight.done - request.life.withdrawn_step
                delay_us = (now_ns - request.life.withdrawn_ns) // 1000
                self.reclaimed(request, blocks.block_count, steps, delay_us)

    def reclaimed(self, request: Request, blocks: int, steps: int, delay_us: int) -> None:
        """Report that a withdrawn or ended stream has given back its last block."""
        self._reply(Reclaimed(request.stream, blocks, steps, delay_us))
        counters = self._counters
        counters.reclaims += 1
        counters.reclaim_us_total += delay_us
        counters.reclaim_us_max = max(counters.reclaim_us_max, delay_us)
        counters.reclaim_steps_max = max(counters.reclaim_steps_max, steps)
