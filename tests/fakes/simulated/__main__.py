"""Runs the simulation of the whole stack: `python -m fakes.simulated --seeds 10000`, or `--seed N --trace` for one run."""

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from fakes.simulated.seed_runs import repeat_command, run_seed
from fakes.simulated.simulation import StackSimulation


def main() -> int:
    """Run one seed, or many seeds in several processes; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fakes.simulated")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--trace", action="store_true", help="show every message of the one seed")
    parser.add_argument("--seeds", type=int, default=300, help="so many seeds")
    parser.add_argument("--first", type=int, default=0, help="from this one")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.seed is not None:
        simulation = StackSimulation(given.seed, trace=print if given.trace else None)
        scenario = simulation.scenario
        print(scenario.settings, scenario.rates, scenario.geometry, sep="\n")
        simulation.run()
        print(dict(simulation.counts))
        return 0
    began_s, total, failed = time.monotonic(), Counter[str](), 0
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        seeds = range(given.first, given.first + given.seeds)
        for seed, problem, counts in pool.imap_unordered(run_seed, seeds, chunksize=10):
            total += counts
            if problem:
                failed += 1
                print(f"seed {seed}: {problem}\n  {repeat_command(seed)}", flush=True)
    print(f"{given.seeds} seeds, {failed} failed, {time.monotonic() - began_s:.0f} s")
    for name, count in sorted(total.items()):
        print(f"  {name}: {count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
