"""What a benchmark needs of whatever it measures."""

from typing import Protocol

from noria.cli.bench.request_timeline import Observed
from noria.cli.bench.workload import Job


class Target(Protocol):
    """Takes jobs, and notes what comes back."""

    async def describe(self) -> str:
        """The model's name. Raises UserError when nothing answers."""

    async def answer(self, job: Job, observed: Observed) -> None:
        """Send one request and note each piece of its answer and its end; what goes wrong is noted as its error.

        `observed.begun_s` is set when it is still 0.
        """

    async def close(self) -> None:
        """Let go of connections."""
