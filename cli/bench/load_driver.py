"""Sends jobs to a target as a load says, in one event loop, and tells what the client itself cost."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from noria.cli.bench.arrivals import Closed, Load, moments
from noria.cli.bench.request_timeline import Observed
from noria.cli.bench.targets.target import Target
from noria.cli.bench.workload import Job


class Driven(msgspec.Struct, frozen=True):
    """A run's observations, in the order of its jobs; client_cpu: cores that the client kept busy on average."""

    observed: tuple[Observed, ...]
    client_cpu: float


async def drive(
    target: Target,
    jobs: Sequence[Job],
    load: Load,
    timeout_s: float = 600.0,
    tell: Callable[[int], None] = lambda ended: None,
) -> Driven:
    """Run all jobs to their ends; `tell` hears how many have ended."""
    observed = tuple(Observed(job.index, job.output_tokens) for job in jobs)
    ended = 0

    async def run(number: int) -> None:
        nonlocal ended
        each = observed[number]
        try:
            async with asyncio.timeout(timeout_s):
                await target.answer(jobs[number], each)
        except TimeoutError:
            each.error, each.ended_s = f"no end within {timeout_s:g} s", time.perf_counter()
        ended += 1
        tell(ended)

    # A collection over what a benchmark has piled up would show as a stall of the target.
    gc.collect()
    gc.disable()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        if isinstance(load, Closed):
            await _closed(run, len(jobs), load.in_flight)
        else:
            await _timed(run, observed, moments(load, jobs))
    finally:
        gc.enable()
    busy = (time.process_time() - cpu_s) / max(1e-9, time.perf_counter() - began_s)
    return Driven(observed, busy)


async def _closed(run: Callable[[int], Coroutine[None, None, None]], count: int, in_flight: int) -> None:
    following = iter(range(count))

    async def lane() -> None:
        for number in following:
            await run(number)

    await asyncio.gather(*(lane() for _ in range(min(in_flight, count))))


async def _timed(
    run: Callable[[int], Coroutine[None, None, None]], observed: Sequence[Observed], times: Sequence[float]
) -> None:
    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number, after_s in enumerate(times):
            due_s = start_s + after_s
            await asyncio.sleep(due_s - time.perf_counter())
            observed[number].begun_s = due_s
            observed[number].slip_s = time.perf_counter() - due_s
            tasks.create_task(run(number))
