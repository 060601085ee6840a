"""Replays a production trace with real prefix sharing through the scheduler core, and compares what the cache finds.

Run: python benchmarks/mooncake.py TRACE.jsonl [--requests N] [--page-size TOKENS] [--cache TOKENS ...] [--at-a-time N]

TRACE is the Mooncake conversation trace (FAST '25): lengths, and an id for each block of 512 prompt tokens; equal ids are
equal content. Table 1: one request at a time; hit rate is the share of prompt tokens found in the cache, beside that of
a cache without bound and of a plain LRU over pages of the same size that touches a request's pages from the last to the
first. Table 2: N requests at a time. Requests that can never fit are left out of every column and counted.
"""

import argparse
import json
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from noria.proto.base import Ended, Stream
from noria.proto.execution import Geometry, Group, Sampled, StepDone, StepPlan
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler
from noria.services.scheduler.core.state.counters import SchedulerCounters

TRACE_BLOCK: Final = 512
_OUTPUT_IDS: Final = 1 << 48
_OUTPUT_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Row:
    """One request of the trace."""

    number: int
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]

    def prompt(self) -> tuple[int, ...]:
        """Token ids: those of a block follow from its id."""
        whole = (block * TRACE_BLOCK + each for block in self.blocks for each in range(TRACE_BLOCK))
        return tuple(token for token, _ in zip(whole, range(self.prompt_tokens), strict=False))

    def pages(self, page_tokens: int) -> Iterator[int]:
        """Names of the full pages of prompt and output; equal names are equal prefixes."""
        prompt_pages = self.prompt_tokens // page_tokens
        for page in range(prompt_pages):
            yield self.blocks[page * page_tokens // TRACE_BLOCK] * TRACE_BLOCK + page * page_tokens % TRACE_BLOCK
        for page in range(prompt_pages, (self.prompt_tokens + self.output_tokens - 1) // page_tokens):
            yield -(self.number * _OUTPUT_MAX + page)


class Replay:
    """A core and an executor that answers at once."""

    def __init__(self, cache_tokens: int, page_tokens: int, at_a_time: int, host_tokens: int = 0) -> None:
        self._core = Scheduler(CoreSettings(max_batch_tokens=8192, max_requests_per_batch=at_a_time))
        pages, host = cache_tokens // page_tokens, host_tokens // page_tokens
        group = Group(0, 1)
        shape = Geometry("", (group,), pages + 2, 2, page_tokens, at_a_time, 8192, 1 << 22, 0, "", "", host)
        self._core.apply(SchedulerEvent(0, shape))
        self._at_a_time = at_a_time
        self._plans: deque[StepPlan] = deque()
        self._slots: dict[int, list[int]] = {}

    def run(self, rows: list[Row]) -> SchedulerCounters:
        """Serve all rows in order."""
        waiting, alive, now_ns = deque(rows), 0, 0
        while waiting or alive:
            while waiting and alive < self._at_a_time:
                self._core.apply(SchedulerEvent(now_ns, Submit((_submission(waiting.popleft()),))))
                alive += 1
            now_ns += 1000
            while (plan := self._core.plan(now_ns)) is not None:
                self._plans.append(plan)
            ended = self._step(now_ns)
            if ended:
                self._core.apply(SchedulerEvent(now_ns, Ended(ended)))
                alive -= len(ended)
        return self._core.state.counters

    def _step(self, now_ns: int) -> tuple[Stream, ...]:
        plan = self._plans.popleft()
        for fill in plan.fill:
            self._slots[fill.slot] = [fill.stream.request, len(fill.output_ids)]
        sampled = []
        for each in plan.slices:
            if each.sample:
                slot = self._slots[each.slot]
                token = _OUTPUT_IDS + slot[0] * _OUTPUT_MAX + slot[1]
                sampled.append(Sampled(Stream(slot[0], 0), 0, slot[1], (token,)))
                slot[1] += 1
        replies = self._core.apply(SchedulerEvent(now_ns, StepDone(plan.epoch, plan.number, tuple(sampled))))
        return tuple(each.stream for each in replies if isinstance(each, TokenRun) and each.end)


def read(path: Path, most: int) -> list[Row]:
    """The first rows of a trace."""
    rows = []
    with path.open() as file:
        for number, line in enumerate(file):
            if number == most:
                break
            entry = json.loads(line)
            rows.append(Row(number, entry["input_length"], max(1, entry["output_length"]), tuple(entry["hash_ids"])))
    return rows


def lru_hit_rate(rows: list[Row], page_tokens: int, capacity: int | None) -> float:
    """Share of prompt tokens that an LRU over pages finds; None is without bound."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = total = 0
    for row in rows:
        names = list(row.pages(page_tokens))
        limit, hits = (row.prompt_tokens - 1) // page_tokens, 0
        while hits < limit and names[hits] in cache:
            hits += 1
        found += hits * page_tokens
        total += row.prompt_tokens
        for name in reversed(names):
            cache[name] = None
            cache.move_to_end(name)
        while capacity is not None and len(cache) > capacity:
            cache.popitem(last=False)
    return found / max(1, total)


def fitting(rows: list[Row], cache_tokens: int) -> list[Row]:
    """Those that the cache can hold alone."""
    return [row for row in rows if row.prompt_tokens + row.output_tokens <= cache_tokens]


def alone_line(rows: list[Row], cache_tokens: int, page_tokens: int) -> str:
    """One line of table 1."""
    kept = fitting(rows, cache_tokens)
    counters = Replay(cache_tokens, page_tokens, 1).run(kept)
    ours = counters.hit_tokens / max(1, counters.prompt_tokens)
    plain = lru_hit_rate(kept, page_tokens, cache_tokens // page_tokens)
    unbounded = lru_hit_rate(kept, page_tokens, None)
    share = ours / plain if plain else 1.0
    return (
        f"| {cache_tokens} | {len(rows) - len(kept)} | {ours:.2%} | {plain:.2%} | {share:.1%} | {unbounded:.2%} | "
        f"{counters.evictions} |"
    )


def together_line(rows: list[Row], cache_tokens: int, page_tokens: int, at_a_time: int, host_tokens: int) -> str:
    """One line of table 2."""
    kept = fitting(rows, cache_tokens)
    counters = Replay(cache_tokens, page_tokens, at_a_time, host_tokens).run(kept)
    served = counters.prompt_tokens + counters.output_tokens
    return (
        f"| {cache_tokens} | {host_tokens} | {counters.hit_tokens / max(1, counters.prompt_tokens):.2%} | "
        f"{counters.resets} | {counters.swaps_out} | {counters.recomputed_tokens / max(1, served):.2%} | "
        f"{counters.merged_pages} | {counters.evictions} |"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--cache", type=int, nargs="*", default=[1 << 16, 1 << 18, 1 << 20])
    parser.add_argument("--at-a-time", type=int, default=16)
    chosen = parser.parse_args()
    rows, began = read(chosen.trace, chosen.requests), time.perf_counter()
    print(f"{len(rows)} requests, pages of {chosen.page_size} tokens\n\nOne at a time\n")
    print("| cache, tokens | too long | hit rate | plain LRU | ours / LRU | without bound | evictions |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for cache_tokens in chosen.cache:
        print(alone_line(rows, cache_tokens, chosen.page_size), flush=True)
    print(f"\n{chosen.at_a_time} at a time\n")
    print("| cache, tokens | host, tokens | hit rate | resets | swaps | computed again | merged | evictions |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for cache_tokens in chosen.cache:
        for host_tokens in (0, cache_tokens):
            print(together_line(rows, cache_tokens, chosen.page_size, chosen.at_a_time, host_tokens), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


def _submission(row: Row) -> Submission:
    return Submission(Stream(row.number, 0), 0, row.prompt(), Sampling(max_tokens=row.output_tokens, seed=1))


if __name__ == "__main__":
    main()
