"""One tenant floods the stack with long prompts; what does another one notice? Real processes, real model.

Run: python benchmarks/flood.py [--model NAME] [--seconds S] [--repeats N] [--out FILE.json] [-- FLAGS of `noria up`]

The tenant `people` sends short interactive requests as a Poisson process; the tenant `crawler` keeps FLOOD long prompts
in class `batch` in flight. For each policy and repeat a stack serves the people alone first, then people and flood; the
policies take turns, with the same arrivals, lengths and settings; no prompt is asked twice. Reported are the people's
time to first token and time between tokens, as their client sees them, over all repeats, and the query tokens that the
stack computed in a second while both were there, without those computed for nothing or again.

The load is what leaves two cores, one of them for the steps (`-- --threads 1`), idle for half of the time without the
flood: where two threads compute and share their cores with clients and services, each waits for the other at every
product of matrices, and a busy neighbour makes a step take up to a hundred times as long. What FILE.json holds already of
the same load counts too, so that a long measurement can be made in parts: further repeats are added to it.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from noria.cli.commands.keys import hash_key
from noria.client import AsyncClient, ClientError
from noria.proto.base import Service
from noria.services.scheduler.simulation.report import quantile
from noria.shared.actor.inspect import inspect
from noria.shared.config.config import RuntimeSettings

POLICIES: Final = ("fifo", "fair")
PEOPLE, CRAWLER = "people", "crawler"
CONFIG: Final = f"""
[tenants.{PEOPLE}]
keys = ["{hash_key(PEOPLE)}"]
default_class = "interactive"
[tenants.{CRAWLER}]
keys = ["{hash_key(CRAWLER)}"]
classes = ["batch"]
"""
# Ids that no tokenizer of a real model gives a special meaning.
IDS: Final = range(1000, 9000)


class FloodLoad(msgspec.Struct, frozen=True):
    """The load of one run. rate: interactive requests a second. flood: long requests kept in flight."""

    seconds: float = 20.0
    warm_seconds: float = 8.0
    rate: float = 1.5
    prompt_tokens: int = 100
    output_tokens: int = 32
    flood: int = 4
    flood_prompt_tokens: int = 4000
    flood_output_tokens: int = 16


class TenantLatencies(msgspec.Struct):
    """First-token and inter-token latencies that one tenant observed, in milliseconds, and its failed requests."""

    ttft: list[float] = []
    gaps: list[float] = []
    failures: int = 0


class FloodRun(msgspec.Struct, frozen=True, rename={"latencies": "seen"}):
    """One run of one policy, with or without the flood. tokens_s: query tokens computed for good in a second."""

    policy: str
    flooded: bool
    repeat: int
    latencies: TenantLatencies
    floods_done: int
    tokens_s: float


class PolicyRow(msgspec.Struct, frozen=True):
    """Quantiles over all repeats of one policy, with or without the flood."""

    policy: str
    flooded: bool
    requests: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    tokens_s: float


class FloodReport(msgspec.Struct, frozen=True):
    """The result of the whole benchmark."""

    model: str
    flags: list[str]
    load: FloodLoad
    rows: list[PolicyRow]
    phases: list[FloodRun]


@contextlib.contextmanager
def serving(policy: str, model: str, flags: Sequence[str]) -> Iterator[Path]:
    """Run a stack in a folder of its own; yields its runtime folder."""
    folder = Path(tempfile.mkdtemp(prefix="noria-flood-"))
    config, runtime = folder / "noria.toml", folder / "run"
    config.write_text(CONFIG)
    command = [
        str(Path(sys.executable).parent / "noria"), "up", "--model", model, "--scheduler", policy, "--http", f"127.0.0.1:{_port()}",
        "--config", str(config), "--runtime-dir", str(runtime), *flags,
    ]  # fmt: skip
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        asyncio.run(_ready(runtime, process, log))
        yield runtime
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _ready(runtime: Path, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the stack generates a first token."""
    deadline = time.monotonic() + 300
    while True:
        with contextlib.suppress(Exception):  # refused while it starts, in many ways
            async with AsyncClient(runtime_dir=str(runtime), credential=PEOPLE) as client:
                await client.complete(token_ids=[*IDS][:40], max_tokens=4, ignore_eos=True)
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the stack does not serve:\n{log.read_text(errors='replace')[-3000:]}")
        await asyncio.sleep(0.2)


class _TokenCounters(msgspec.Struct, frozen=True):
    tokens: int
    wasted_tokens: int
    recomputed_tokens: int


class _SchedulerState(msgspec.Struct, frozen=True):
    counters: _TokenCounters


async def computed_tokens(runtime: Path) -> int:
    """Return how many query tokens the stack has computed since its start, discarded ones left out."""
    snapshot = await asyncio.to_thread(inspect, RuntimeSettings(dir=str(runtime)), Service.SCHEDULER, 10.0)
    assert snapshot is not None, "the scheduler answers"
    counters = msgspec.json.decode(snapshot.json, type=_SchedulerState).counters
    return counters.tokens - counters.wasted_tokens - counters.recomputed_tokens


async def send_request(
    client: AsyncClient, draw: random.Random, prompt_tokens: int, output_tokens: int, latencies: TenantLatencies
) -> None:
    """Send one request and record its latencies until its end."""
    asked = time.perf_counter()
    last = 0.0
    try:
        async for delta in client.generate(
            token_ids=draw.choices(IDS, k=prompt_tokens), max_tokens=output_tokens, ignore_eos=True, temperature=0.0
        ):
            if not delta.token_ids:
                continue
            now = time.perf_counter()
            if last:
                latencies.gaps.append((now - last) * 1e3)
            else:
                latencies.ttft.append((now - asked) * 1e3)
            last = now
    except ClientError as error:
        print(f"failed: {error}", file=sys.stderr)
        latencies.failures += 1


async def send_interactive(
    client: AsyncClient, load: FloodLoad, seed: int, latencies: TenantLatencies, prompts: str
) -> None:
    """Send interactive requests at Poisson times; returns when all are answered.

    seed: of their arrivals. prompts: a seed of their prompts; the same ones again would be in the cache.
    """
    draw, words = random.Random(seed), random.Random(prompts)
    began, at = time.perf_counter(), 0.0
    async with asyncio.TaskGroup() as tasks:
        while (at := at + draw.expovariate(load.rate)) < load.seconds:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            own = random.Random(words.random())
            tasks.create_task(send_request(client, own, load.prompt_tokens, load.output_tokens, latencies))


async def send_flood(client: AsyncClient, load: FloodLoad, seed: int, latencies: TenantLatencies) -> None:
    """Send one long request after another, until cancelled."""
    draw = random.Random(seed)
    while True:
        await send_request(client, draw, load.flood_prompt_tokens, load.flood_output_tokens, latencies)


async def run_phase(runtime: Path, load: FloodLoad, policy: str, repeat: int, *, flooded: bool) -> FloodRun:
    """Measure the interactive tenant, alone or beside the flood."""
    latencies, flood = TenantLatencies([], []), TenantLatencies([], [])
    async with (
        AsyncClient(runtime_dir=str(runtime), credential=PEOPLE) as theirs,
        AsyncClient(runtime_dir=str(runtime), credential=CRAWLER, traffic_class="batch") as bulk,
    ):
        # Without the flood too: what the server learns of its steps, it has learned before anything is measured.
        warm = msgspec.structs.replace(load, seconds=load.warm_seconds / 2)
        await send_interactive(theirs, warm, 17 + repeat, TenantLatencies([], []), f"warm {repeat} {flooded}")
        streams = [
            asyncio.create_task(send_flood(bulk, load, 100 * repeat + n, flood)) for n in range(load.flood * flooded)
        ]
        await asyncio.sleep(load.warm_seconds * flooded)
        began, tokens, floods = time.perf_counter(), await computed_tokens(runtime), len(flood.ttft)
        served = asyncio.create_task(send_interactive(theirs, load, 1 + repeat, latencies, f"{repeat} {flooded}"))
        await asyncio.sleep(load.seconds)
        tokens = await computed_tokens(runtime) - tokens
        seconds, floods = time.perf_counter() - began, len(flood.ttft) - floods
        await served
        for each in streams:
            each.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    await asyncio.sleep(1.0)
    return FloodRun(policy, flooded, repeat, latencies, floods, tokens / seconds)


def policy_rows(phases: Sequence[FloodRun]) -> list[PolicyRow]:
    """Return one row for each policy, without and with the flood; quantiles are over all repeats."""
    rows = []
    for policy in dict.fromkeys(each.policy for each in phases):
        for flooded in (False, True):
            mine = [each for each in phases if each.policy == policy and each.flooded is flooded]
            ttft = [value for each in mine for value in each.latencies.ttft]
            gaps = [value for each in mine for value in each.latencies.gaps]
            if not mine:
                continue
            rate = sum(each.tokens_s for each in mine) / len(mine)
            points = [quantile(values, share) for values in (ttft, gaps) for share in (0.5, 0.99)]
            rows.append(PolicyRow(policy, flooded, len(ttft), *points, rate))
    return rows


def render_table(rows: Sequence[PolicyRow]) -> str:
    """Return the table of all rows, with the goals that they meet or miss."""
    lines = [
        "| policy | flood | requests | TTFT p50 | TTFT p99 | ITL p50 | ITL p99 | all tokens/s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += map(render_row, rows)
    found = {(row.policy, row.flooded): row for row in rows}
    fair, alone, fifo = (found.get(key) for key in (("fair", True), ("fair", False), ("fifo", True)))
    if fair is not None and alone is not None and fifo is not None:
        ttft, itl = fair.ttft_p99_ms / alone.ttft_p99_ms, fair.itl_p99_ms / alone.itl_p99_ms
        lines += [
            "",
            f"fair under the flood: TTFT p99 {ttft:.2f} times (goal 2), ITL p99 {itl:.2f} times (goal 1.5) what it is "
            f"without; all tokens/s {fair.tokens_s / fifo.tokens_s:.1%} of fifo (goal 95 %)",
        ]
    return "\n".join(lines)


def render_row(row: PolicyRow) -> str:
    """Return one row of the table."""
    times = (row.ttft_p50_ms, row.ttft_p99_ms, row.itl_p50_ms, row.itl_p99_ms)
    cells = " | ".join(f"{each:.0f} ms" for each in times)
    return f"| {row.policy} | {'yes' if row.flooded else 'no'} | {row.requests} | {cells} | {row.tokens_s:.0f} |"


def read_earlier(path: Path | None, model: str, flags: list[str], load: FloodLoad) -> list[FloodRun]:
    """Read the runs that a file holds already; ends the program when they are of another load."""
    if path is None or not path.exists():
        return []
    report = msgspec.json.decode(path.read_bytes(), type=FloodReport)
    if (report.model, report.flags, report.load) != (model, flags, load):
        raise SystemExit(f"{path} holds another measurement: name another file, or remove it")
    return report.phases


def main() -> None:
    """Measure, print the table, and write all results."""
    load = FloodLoad()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    parser.add_argument("--out", type=Path)
    for name in FloodLoad.__struct_fields__:
        default = getattr(load, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("flags", nargs="*", help="for `noria up`, after --")
    chosen = parser.parse_args()
    load = FloodLoad(**{name: getattr(chosen, name) for name in FloodLoad.__struct_fields__})
    phases = read_earlier(chosen.out, chosen.model, chosen.flags, load)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the stack is ended, too
    for turn in range(chosen.repeats):
        for policy in chosen.policy if turn % 2 == 0 else chosen.policy[::-1]:
            repeat = sum(each.policy == policy for each in phases) // 2
            with serving(policy, chosen.model, chosen.flags) as runtime:
                for flooded in (False, True):
                    phases.append(asyncio.run(run_phase(runtime, load, policy, repeat, flooded=flooded)))
                    print(render_row(policy_rows(phases[-1:])[0]), file=sys.stderr, flush=True)
            if chosen.out is not None:
                report = FloodReport(chosen.model, chosen.flags, load, policy_rows(phases), phases)
                chosen.out.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(render_table(policy_rows(phases)))


if __name__ == "__main__":
    main()
