"""What it costs to lose nothing: journal and heartbeats, as a ratio of throughput and of the time to a first token.

Two stacks stand side by side and take turns (loaded.py): one with the journal and a heartbeat each second, as it comes, and
one without a journal whose services beat once an hour.

    python benchmarks/journal.py [--model smollm2] [--rounds 60] [--seconds 1] [--requests 32]
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from e2e.harness import Stack, stack
from loaded import alternate, report

from noria.client import AsyncClient

FIRST_TOKENS = 12
FIRST_TOKENS_ROUNDS = 10


def first_token_ms(running: Stack) -> float:
    """Median milliseconds to the first token of requests that come one after the other."""

    async def run() -> float:
        found = []
        async with AsyncClient(running.endpoint) as client:
            for number in range(FIRST_TOKENS):
                begun = time.monotonic()
                generation = client.generate(f"{number} buckets", max_tokens=2, ignore_eos=True, temperature=0.0)
                await generation.next()
                found.append((time.monotonic() - begun) * 1000)
                await generation.result()
        return statistics.median(found)

    return asyncio.run(run())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--output", type=int, default=64)
    given = parser.parse_args()
    same = ("--max-requests-per-batch", str(given.requests), "--num-blocks", "2048", "--log-level", "warning")
    without = {"NORIA_RUNTIME_JOURNAL": "false", "NORIA_RUNTIME_HEARTBEAT_S": "3600", "NORIA_RUNTIME_PEER_TIMEOUT_S": "9000",
               "NORIA_RUNTIME_HANG_TIMEOUT_S": "9000"}  # fmt: skip
    with contextlib.ExitStack() as stacks:
        kept = stacks.enter_context(stack(given.model, *same))
        bare = stacks.enter_context(stack(given.model, *same, environment=without))
        pair = {"without": bare, "journal and heartbeats": kept}
        firsts: dict[str, list[float]] = {name: [] for name in pair}
        for _ in range(FIRST_TOKENS_ROUNDS):
            for name, running in pair.items():
                firsts[name].append(first_token_ms(running))
        loads = alternate(pair, given.rounds, given.seconds, given.requests, given.output)
    print(f"{given.model}, {given.requests} requests at once, {given.rounds} rounds of {given.seconds:g} s")
    for name in pair:
        print(report(name, "without", loads))
        print(f"{'':<24}{statistics.median(firsts[name]):8.2f} ms to the first token of a request alone")


if __name__ == "__main__":
    main()
