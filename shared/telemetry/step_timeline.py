"""Timings of steps (prepared, computed, result read), as the executor reports them, and as a trace for Chrome and Perfetto.

All times are of one process's monotonic clock, in nanoseconds. The trace is JSON in the Trace Event Format that
chrome://tracing and ui.perfetto.dev open.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

STEPS_KEPT: Final = 2048
"""How many of its last steps an executor remembers."""


class StepTiming(msgspec.Struct, frozen=True):
    """When one step was prepared, launched, computed and read. It was laid out between prepare_ns and posted_ns.

    launched_ns: the model runner began it; it computed between began_ns and ended_ns; its result was on the host at result_ns.
    way: how it was computed, where there is more than one.
    """

    epoch: int
    number: int
    query_tokens: int
    requests: int
    prepare_ns: int
    posted_ns: int
    launched_ns: int
    began_ns: int
    ended_ns: int
    result_ns: int
    way: str = ""


class StepOverlap(msgspec.Struct, frozen=True):
    """How well consecutive steps overlapped host and device work. steps: pairs of consecutive steps.

    prepared: of these, how many second ones were laid out wholly while the first computed; ready: how many lay ready when
    the first ended. idle: the device's time between two as a share of the time from one beginning to the next.
    """

    steps: int
    prepared: int
    ready: int
    idle: float


def measure_overlap(steps: Sequence[StepTiming]) -> StepOverlap:
    """Measure the overlap of consecutive steps of the same epoch."""
    pairs = [
        (one, other) for one, other in pairwise(steps) if other.epoch == one.epoch and other.number == one.number + 1
    ]
    prepared = sum(one.began_ns <= other.prepare_ns and other.posted_ns <= one.ended_ns for one, other in pairs)
    ready = sum(other.posted_ns <= one.ended_ns for one, other in pairs)
    idle_ns = sum(max(0, other.began_ns - one.ended_ns) for one, other in pairs)
    whole_ns = sum(other.began_ns - one.began_ns for one, other in pairs)
    return StepOverlap(len(pairs), prepared, ready, idle_ns / whole_ns if whole_ns > 0 else 0.0)


def chrome_trace(steps: Sequence[StepTiming]) -> dict[str, Any]:
    """Steps in the Trace Event Format: a row for each phase; times in microseconds from the first step on."""
    events = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": row, "args": {"name": name}}
        for row, name in enumerate(_ROWS)
    ]
    origin_ns = min((each.prepare_ns for each in steps), default=0)
    for step in steps:
        events += _events(step, origin_ns)
    return {"displayTimeUnit": "ms", "traceEvents": events}


_ROWS: Final = ("host: prepare", "lane: ready", "device: compute", "host: result")


def _events(step: StepTiming, origin_ns: int) -> Iterator[dict[str, Any]]:
    arguments = {"epoch": step.epoch, "query tokens": step.query_tokens, "requests": step.requests, "way": step.way}
    bounds = (
        (step.prepare_ns, step.posted_ns),
        (step.posted_ns, step.began_ns),
        (step.began_ns, step.ended_ns),
        (step.ended_ns, step.result_ns),
    )
    for row, (from_ns, to_ns) in enumerate(bounds):
        yield {
            "name": f"{step.number}",
            "ph": "X",
            "pid": 1,
            "tid": row,
            "ts": (from_ns - origin_ns) / 1000,
            "dur": max(0, to_ns - from_ns) / 1000,
            "args": arguments,
        }
