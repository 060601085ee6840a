"""Measures what sampling adds to a whole step: `python benchmarks/sampled_steps.py [OPTIONS]`, see --help.

Drives the executor's engine directly: decode steps of many sequences that sample in one way or another, in turns in one
process, so that a change of the machine's mood meets all of them. Each way's time is compared with greedy steps; medians.
"""

import argparse
import statistics
import time

from sampling import KINDS
from steps import StepBench

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.kv_cache.page_formats import CACHE_DTYPES
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import RESERVED_CHUNKS
from noria.services.executor.plan.slot_table import SlotTable
from noria.services.executor.runner.machine import cores

STEPS = 6  # of a turn, of which the first is not counted


def turn(
    bench: StepBench, slots: SlotTable, epoch: int, sampling: Sampling, sequences: int, context: int
) -> list[float]:
    """Return milliseconds of steps in which all rows sample with the same parameters."""
    pages = (context + STEPS) // bench.shape.page_size + 1
    fills = tuple(
        Fill(slot, Stream(slot, epoch), 0, tuple(range(1, context + 1)), (), sampling, (), (_pages(slot, pages),))
        for slot in range(sequences)
    )
    times = []
    for number in range(STEPS):
        slices = tuple(Slice(slot, context - 1 + number, 1, number > 0, True) for slot in range(sequences))
        batch = prepare(slots, StepPlan(epoch, number + 1, slices, fill=() if number else fills))
        began = time.perf_counter()
        bench.engine.run(batch)
        times.append(1e3 * (time.perf_counter() - began))
    return times[1:]


def _pages(slot: int, pages: int) -> tuple[int, ...]:
    first = RESERVED_CHUNKS + slot * pages
    return tuple(range(first, first + pages))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="", help="name of a pulled model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--cache", default="", choices=["", *CACHE_DTYPES])
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--sequences", nargs="+", type=int, default=[32])
    parser.add_argument("--contexts", nargs="+", type=int, default=[256])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--cache-gib", type=float, default=1.0)
    options = parser.parse_args()
    bench, epoch = StepBench(options, "auto"), 0
    slots = SlotTable(bench.shape)
    for sequences in options.sequences:
        for context in options.contexts:
            times: dict[str, list[float]] = {name: [] for name in KINDS}
            for _ in range(options.rounds):
                for name, sampling in KINDS.items():
                    epoch += 1
                    times[name] += turn(bench, slots, epoch, sampling, sequences, context)
            greedy = statistics.median(times["greedy"])
            for name, found in times.items():
                middle = statistics.median(found)
                print(f"{sequences:4} x {context:5}  {name:22} {middle:7.2f} ms  {middle / greedy:5.3f} of greedy")


if __name__ == "__main__":
    main()
