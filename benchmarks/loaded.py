"""A stack under load: its tokens a second, and the processor time that it takes for a token, and where.

The time of a token is mostly that of computing, which neighbours of a shared machine make longer or shorter at will. What the
processes around it take is a twentieth, and hardly changes: a cost that is in there is seen in a few seconds.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.harness import Stack

from noria.client import AsyncClient


class Load(NamedTuple):
    """What was measured of a stack: tokens a second, processor milliseconds a token.

    around: the part of these that is not computing: all processes' but the executor's, and of that its main thread's.
    """

    tokens_s: float
    whole_ms: float
    around_ms: float


def measure(running: Stack, seconds: float, at_once: int, output: int) -> Load:
    """Load a stack that is warm."""

    async def run() -> tuple[int, float]:
        async with AsyncClient(running.endpoint) as client:
            return await _saturate(client, seconds, at_once, output)

    whole_ms, around_ms = _processor_ms(running)
    tokens, took_s = asyncio.run(run())
    later_whole_ms, later_around_ms = _processor_ms(running)
    return Load(tokens / took_s, (later_whole_ms - whole_ms) / tokens, (later_around_ms - around_ms) / tokens)


def report(case: str, base: str, loads: dict[str, list[Load]]) -> str:
    """A case beside the one that is the base, whose rounds are in the same order."""
    found, others = loads[case], loads[base]
    rates = [one.tokens_s / other.tokens_s for one, other in zip(found, others, strict=True)]
    whole = [one.whole_ms / other.whole_ms for one, other in zip(found, others, strict=True)]
    around = _middle([each.around_ms for each in found])
    added = around - _middle([each.around_ms for each in others])
    share = added / _middle([each.whole_ms for each in others])
    shown = " ".join(f"{each:.3f}" for each in rates)
    return (
        f"{case:<24}{_middle([each.tokens_s for each in found]):8.1f} tokens/s, {_middle(rates):.3f} of {base} ({shown})\n"
        f"{'':<24}{_middle([each.whole_ms for each in found]):8.3f} ms of processor a token, {_middle(whole):.3f}; around "
        f"computing {around:.4f} ms, {added:+.4f}: {share:+.2%} of the whole"
    )


def _middle(found: Sequence[float]) -> float:
    return statistics.median(found)


async def _saturate(client: AsyncClient, seconds: float, at_once: int, output: int) -> tuple[int, float]:
    """Tokens, and the seconds they took, with so many requests always under way."""
    tokens, over = 0, asyncio.get_running_loop().time() + seconds

    async def one(number: int) -> None:
        nonlocal tokens
        while asyncio.get_running_loop().time() < over:
            generation = client.generate(f"{number} water wheels", max_tokens=output, ignore_eos=True, temperature=1.0)
            async for delta in generation:
                tokens += len(delta.token_ids)
                if asyncio.get_running_loop().time() >= over:
                    break
            generation.leave()

    begun = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(at_once)))
    return tokens, time.monotonic() - begun


def _processor_ms(running: Stack) -> tuple[float, float]:
    """What the threads of a stack have used so far: all of them, and those that do not compute."""
    whole = around = 0.0
    for service, pid in running.pids().items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            used_ms = int((thread / "schedstat").read_text().split()[0]) / 1e6
            whole += used_ms
            if service != "executor" or thread.name == str(pid):
                around += used_ms
    return whole, around
