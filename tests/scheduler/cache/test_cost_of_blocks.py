"""What a block costs the cache does not grow with the cache."""

import sys
import time
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import pytest
from fakes.scripts import script


def lines(phase: Callable[[], int]) -> float:
    """Lines executed for each block touched: what a busy machine does not change."""
    count = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        touched = phase()
    finally:
        sys.settrace(before)
    return count / touched


def seconds(phase: Callable[[], int]) -> float:
    """This thread's time for each block touched: what scans inside the interpreter take shows here alone."""
    begun = time.thread_time()
    touched = phase()
    return (time.thread_time() - begun) / touched


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return script("benchmarks/cache_blocks.py")


def test_a_block_costs_as_many_lines_in_a_large_cache_as_in_a_small_one(benchmark: ModuleType) -> None:
    small, large = dict(benchmark.costs(500, lines)), dict(benchmark.costs(8_000, lines))
    assert small.keys() == large.keys() and len(small) == 7
    for phase, cost in large.items():
        assert 0 < cost < 1.1 * small[phase], phase
        assert cost < 60, phase


def test_a_block_costs_about_as_long_in_a_large_cache_as_in_a_small_one(benchmark: ModuleType) -> None:
    rounds = [[dict(benchmark.costs(blocks, seconds)) for blocks in (500, 8_000)] for _ in range(5)]
    for phase in rounds[0][0]:
        small, large = (min(both[size][phase] for both in rounds) for size in (0, 1))
        assert large < 4 * small, f"{phase}: {large * 1e6:.2f} us instead of {small * 1e6:.2f}"
