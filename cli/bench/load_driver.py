"""Sends requests to a target in a load pattern, in one event loop, and measures how busy the client itself was."""

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from noria.cli.bench.arrivals import ClosedLoop, LoadPattern, send_times
from noria.cli.bench.request_timeline import BenchTimeline
from noria.cli.bench.targets.target import Target
from noria.cli.bench.workload import BenchRequest


class LoadResult(msgspec.Struct, frozen=True):
    """A run's timelines, in the order of its requests. client_cpu: cores that the client kept busy on average."""

    timelines: tuple[BenchTimeline, ...]
    client_cpu: float


async def run_load(
    target: Target,
    requests: Sequence[BenchRequest],
    load: LoadPattern,
    timeout_s: float = 600.0,
    on_ended: Callable[[int], None] = lambda ended: None,
) -> LoadResult:
    """Run all requests to their ends; `on_ended` is called with the number of requests that have ended so far."""
    timelines = tuple(BenchTimeline(request.index, request.output_tokens) for request in requests)
    ended = 0

    async def run(number: int) -> None:
        nonlocal ended
        timeline = timelines[number]
        try:
            async with asyncio.timeout(timeout_s):
                await target.answer(requests[number], timeline)
        except TimeoutError:
            timeline.error, timeline.ended_s = f"no end within {timeout_s:g} s", time.perf_counter()
        ended += 1
        on_ended(ended)

    # A collection over what a benchmark has piled up would show as a stall of the target.
    gc.collect()
    gc.disable()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        if isinstance(load, ClosedLoop):
            await _run_closed_loop(run, len(requests), load.in_flight)
        else:
            await _run_timed(run, timelines, send_times(load, requests))
    finally:
        gc.enable()
    busy = (time.process_time() - cpu_s) / max(1e-9, time.perf_counter() - began_s)
    return LoadResult(timelines, busy)


async def _run_closed_loop(run: Callable[[int], Coroutine[None, None, None]], count: int, in_flight: int) -> None:
    following = iter(range(count))

    async def worker() -> None:
        for number in following:
            await run(number)

    await asyncio.gather(*(worker() for _ in range(min(in_flight, count))))


async def _run_timed(
    run: Callable[[int], Coroutine[None, None, None]], timelines: Sequence[BenchTimeline], times: Sequence[float]
) -> None:
    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number, after_s in enumerate(times):
            due_s = start_s + after_s
            await asyncio.sleep(due_s - time.perf_counter())
            timelines[number].begun_s = due_s
            timelines[number].slip_s = time.perf_counter() - due_s
            tasks.create_task(run(number))
