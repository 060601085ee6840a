"""The interface of what a benchmark measures: a server, or the stack on this machine."""

from typing import Protocol

from noria.cli.bench.request_timeline import BenchTimeline
from noria.cli.bench.workload import BenchRequest


class Target(Protocol):
    """Answers benchmark requests and records what comes back."""

    async def describe(self) -> str:
        """Return the model's name. Raises UserError when nothing answers."""

    async def answer(self, request: BenchRequest, timeline: BenchTimeline) -> None:
        """Send one request; record each piece of its answer, its end, or an error in `timeline`.

        `timeline.begun_s` is set when it is still 0.
        """

    async def close(self) -> None:
        """Close all connections."""
