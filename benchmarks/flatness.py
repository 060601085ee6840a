"""Checks that a stack that has served many requests uses no more memory than one that has served few.

    PYTHONPATH=tests python benchmarks/flatness.py [--requests 100000] [--from 10000] [--in-flight 48]

A tiny random model answers short requests over ZeroMQ and HTTP: whole, streamed, cut off, cancelled, refused, in the
background, from clients that come and go. Every tenth part it waits until the stack is idle and reads each process's memory
(proportional set size without mapped files, whose pages are shared with whatever else runs) and every count in
`/debug/state`. It ends with 1 when a process holds more than 5 % and 4 MiB more at the end than at `--from`, or when a count
of something alive is not zero while nothing is. What is remembered on purpose (recent spans, names of refused requests, words
that were tokenized) is bounded, and small enough here to be full before `--from`, but for the names of accepted requests,
which are 0.4 MiB more when there are 8,192; the first requests come in crowds, so that buffers have their final size.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
from e2e.harness import IDLE_COUNTS, Stack
from fakes.tiny_model import build_tiny_model

from noria.client import AsyncClient, ClientError

_MIB = 1 << 20
_GROWTH_MAX, _GROWTH_MIB_MAX = 0.05, 4.0
_IDLE_S_MAX = 60.0
_PARTS = 10
_CLIENT_REQUESTS = 500
# The tokenizer's library keeps what it made of 10,000 words, and does so in each thread anew:
# 14 MiB each where every prompt is a new word. Few enough that both threads have seen all before 10,000 requests.
_PROMPTS = 1000
# The first requests come in crowds, so that every process has once held as much at a time as it ever will, and many of
# them are refused, so that admission knows as many refused ones by name as it ever will.
_CROWDED = 5000


def main() -> int:
    """Serve requests, measure memory, and return 1 if it grew too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--from", dest="first", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=48)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="noria-flat-") as folder:
        stack = Stack(
            str(build_tiny_model(Path(folder) / "tiny")), "--dtype", "float32", "--num-blocks", "600", "--log-level", "warning",
            environment={"NORIA_RUNTIME_RETENTION_S": "2", "NORIA_TELEMETRY_SPANS_KEPT": "1000"},
        )  # fmt: skip
        try:
            stack.wait_ready()
            return asyncio.run(_measure(stack, wanted.requests, wanted.first, wanted.in_flight))
        finally:
            stack.discard()


async def _measure(stack: Stack, requests: int, first: int, in_flight: int) -> int:
    pids = stack.pids()
    marks = sorted({first, *(requests * part // _PARTS for part in range(1, _PARTS + 1))})
    marks = [mark for mark in marks if first <= mark <= requests]
    held: dict[int, dict[str, float]] = {}
    alive: dict[int, Mapping[str, object]] = {}
    done, began_s = 0, time.monotonic()
    print(f"{'requests':>9} {'per s':>6}  " + "  ".join(f"{name:>12}" for name in pids) + "  alive")
    for mark in marks:
        await _serve(stack, done, mark, in_flight)
        alive[mark] = await _idle(stack)
        if stack.pids() != pids:
            print("a process is another now")
            return 1
        held[mark] = {name: _held_mib(pid) for name, pid in pids.items()}
        rate = (mark - done) / (time.monotonic() - began_s)
        row = "  ".join(f"{held[mark][name]:9.1f} MiB" for name in pids)
        print(f"{mark:>9} {rate:>6.0f}  {row}  {alive[mark] or 'nothing'}", flush=True)
        done, began_s = mark, time.monotonic()
    grown = {
        name: held[marks[-1]][name] - held[marks[0]][name]
        for name in pids
        if held[marks[-1]][name] - held[marks[0]][name] > max(_GROWTH_MIB_MAX, held[marks[0]][name] * _GROWTH_MAX)
    }
    for name, mib in grown.items():
        print(f"{name} holds {mib:.1f} MiB more than after {marks[0]} requests")
    return 1 if grown or any(alive.values()) else 0


async def _serve(stack: Stack, begin: int, end: int, in_flight: int) -> None:
    """Send requests `begin` to `end`, with one client for every few hundred."""
    for start in range(begin, end, _CLIENT_REQUESTS):
        room = asyncio.Semaphore(_CLIENT_REQUESTS if start < _CROWDED else in_flight)
        async with (
            AsyncClient(stack.endpoint) as client,
            httpx.AsyncClient(base_url=stack.url, timeout=60, trust_env=False) as http,
        ):
            numbers = range(start, min(start + _CLIENT_REQUESTS, end))
            await asyncio.gather(*(_within(room, client, http, number) for number in numbers))


async def _within(room: asyncio.Semaphore, client: AsyncClient, http: httpx.AsyncClient, number: int) -> None:
    async with room:
        await _request(client, http, number)


async def _request(client: AsyncClient, http: httpx.AsyncClient, number: int) -> None:
    draw = random.Random(number % _PROMPTS)
    prompt = " ".join(str(draw.random()) for _ in range(draw.randint(1, 3)))
    body = {"prompt": prompt, "max_tokens": draw.randint(1, 4), "ignore_eos": True, "seed": number}
    match 4 if number < _CROWDED and number % 2 else number % 20:
        case 0:
            assert (await http.post("/v1/completions", json=body)).status_code == 200
        case 1:
            async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
                async for _ in response.aiter_lines():
                    pass
        case 2:  # cut off while it is answered
            async with http.stream(
                "POST", "/v1/completions", json={**body, "stream": True, "max_tokens": 200}
            ) as response:
                async for _ in response.aiter_lines():
                    break
        case 3:
            made = await http.post("/v1/completions", json=body, headers={"x-noria-background": "true"})
            assert made.status_code == 202
            await http.get(f"/v1/requests/{made.json()['id']}")
        case 4:
            assert (await http.post("/v1/completions", json={**body, "max_tokens": 10**6})).status_code == 400
        case 5:
            generation = client.generate(prompt, max_tokens=200, ignore_eos=True)
            await generation.next()
            await generation.aclose()
        case 6:
            with contextlib.suppress(ClientError):
                await client.complete(prompt, max_tokens=10**6)
        case 7:
            await client.complete(prompt, max_tokens=3, n=2, stop=["zzz"], request_id=f"kept-{number}", keep=True)
        case _:
            whole = await client.complete(prompt, max_tokens=draw.randint(1, 4), ignore_eos=True, seed=number)
            assert whole.finish_reason == "length"


async def _idle(stack: Stack) -> Mapping[str, object]:
    """Wait until no request is alive; returns the counts that are still not zero."""
    deadline_s = time.monotonic() + _IDLE_S_MAX
    while True:
        state = stack.state()
        left = {
            f"{service}.{key}": state[service][key]
            for service, keys in {
                **IDLE_COUNTS,
                "admission": (*IDLE_COUNTS["admission"], "retained", "orphans", "unread", "awaited"),
                "scheduler": (*IDLE_COUNTS["scheduler"], "unaccounted"),
            }.items()
            for key in keys
            if state[service][key]
        }
        if not left or time.monotonic() > deadline_s:
            return left
        await asyncio.sleep(0.2)


def _held_mib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in rollup if line.startswith("Pss")}
    return (kib["Pss_Anon:"] + kib["Pss_Shmem:"]) / 1024


if __name__ == "__main__":
    sys.exit(main())
