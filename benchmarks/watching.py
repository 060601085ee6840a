"""Measures what observation costs (tracing, metrics, an open console), as ratios of throughput in one run.

Three stacks stand side by side and take turns (loaded.py): one that records nothing, one that traces a share of its requests,
sends spans and metrics to a collector in this process and is scraped, and one that records nothing with a console open.

    python benchmarks/watching.py [--model smollm2] [--rounds 60] [--seconds 1] [--requests 32]
"""

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from e2e.harness import Stack, stack
from fakes.collector import Collector
from loaded import alternate, report

SCRAPE_S = 5.0
BLOCKS = "2048"  # so few that memory is soon used again, whose first use costs more


@contextlib.contextmanager
def scraped(running: Stack) -> Iterator[None]:
    """Read /metrics periodically while the body runs."""
    over = threading.Event()

    def scrape() -> None:
        while not over.is_set():
            httpx.get(f"{running.url}/metrics", timeout=60).raise_for_status()
            over.wait(SCRAPE_S)

    with _thread(scrape, over):
        yield


@contextlib.contextmanager
def watched(running: Stack) -> Iterator[None]:
    """Read the live view, as an open console does, while the body runs."""
    over = threading.Event()

    def watch() -> None:
        with httpx.stream("GET", f"{running.url}/console/feed", timeout=60) as response:
            for _ in response.iter_raw():
                if over.is_set():
                    return

    with _thread(watch, over):
        yield


@contextlib.contextmanager
def _thread(work: Callable[[], None], over: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--ratio", type=float, default=0.1, help="of requests traced")
    given = parser.parse_args()
    same = ("--max-requests-per-batch", str(given.requests), "--num-blocks", BLOCKS, "--log-level", "warning")
    nothing = {"NORIA_TELEMETRY_SPANS_KEPT": "0", "NORIA_TELEMETRY_SAMPLE_RATIO": "0"}
    with Collector() as collector, contextlib.ExitStack() as stacks:
        telling = {"NORIA_TELEMETRY_SAMPLE_RATIO": str(given.ratio), "NORIA_TELEMETRY_OTLP_ENDPOINT": collector.url}
        plain = stacks.enter_context(stack(given.model, *same, environment=nothing))
        told = stacks.enter_context(stack(given.model, *same, environment=telling))
        seen = stacks.enter_context(stack(given.model, *same, environment=nothing))
        with scraped(told), watched(seen):
            cases = {"nothing": plain, "tracing and metrics": told, "console": seen}
            loads = alternate(cases, given.rounds, given.seconds, given.requests, given.output)
        print(f"{given.model}, {given.requests} requests at once, {given.rounds} rounds of {given.seconds:g} s")
        for name in loads:
            print(report(name, "nothing", loads))
        print(f"spans that arrived: {len(collector.spans)}")


if __name__ == "__main__":
    main()
