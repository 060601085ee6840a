"""Stacks under load, each running for moments in which the others are stopped: what differs between them, in spite of the machine.

A shared machine changes its speed by a fifth within seconds, which no long turn averages away; what is looked for is a hundredth.
So every stack is under load all the time, but stopped by a signal except in its slices, of about a second, which take turns. A
slice is compared with that of the same round. Besides, the time of a token is mostly that of computing, which neighbours make
longer or shorter at will; what the processes around it take is a twentieth, and hardly changes.
"""

import asyncio
import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from e2e.harness import Stack

from noria.client import AsyncClient

_SETTLE_S: Final = 0.3
_WARM_S: Final = 4.0


class Load(NamedTuple):
    """What was measured of a stack: tokens a second, processor milliseconds a token.

    around: the part of these that is not computing: all processes' but the executor's, and of that its main thread's.
    """

    tokens_s: float
    whole_ms: float
    around_ms: float


def alternate(
    stacks: Mapping[str, Stack], rounds: int, seconds: float, at_once: int, output: int
) -> dict[str, list[Load]]:
    """Load all stacks, of which one runs at a time; so many slices of each. All of them run on afterwards, idle."""
    loads = {name: _Loading(running, at_once, output) for name, running in stacks.items()}
    found: dict[str, list[Load]] = {name: [] for name in stacks}
    with contextlib.ExitStack() as ends:
        for loading in loads.values():
            ends.enter_context(loading.going_on())
            loading.sleep(_WARM_S)
            loading.stop()
        for number in range(rounds):
            for name in list(loads) if number % 2 == 0 else reversed(loads):
                found[name].append(loads[name].slice(seconds))
    return found


def report(case: str, base: str, loads: dict[str, list[Load]]) -> str:
    """A case beside the one that is the base, whose rounds are in the same order."""
    found, others = loads[case], loads[base]
    rates = [one.tokens_s / other.tokens_s for one, other in zip(found, others, strict=True)]
    whole = [one.whole_ms / other.whole_ms for one, other in zip(found, others, strict=True)]
    around = _middle([each.around_ms for each in found])
    added = around - _middle([each.around_ms for each in others])
    share = added / _middle([each.whole_ms for each in others])
    low, high = _certain(rates)
    return (
        f"{case:<24}{_middle([each.tokens_s for each in found]):8.1f} tokens/s, {_middle(rates):.3f} of {base} "
        f"(the median lies within {low:.3f} and {high:.3f}, 19 times of 20)\n"
        f"{'':<24}{_middle([each.whole_ms for each in found]):8.3f} ms of processor a token, {_middle(whole):.3f}; around "
        f"computing {around:.4f} ms, {added:+.4f}: {share:+.2%} of the whole"
    )


class _Loading:
    """One stack with so many requests always under way, sent by a thread of this process."""

    def __init__(self, running: Stack, at_once: int, output: int) -> None:
        self._running, self._at_once, self._output = running, at_once, output
        self._pids = list(running.pids().values())
        self._tokens = 0
        self._over = False

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Load it for as long as the context lasts, whether it runs or not."""
        thread = threading.Thread(target=lambda: asyncio.run(self._load()))
        thread.start()
        try:
            yield
        finally:
            self._over = True
            self._signal(signal.SIGCONT)
            thread.join()

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def slice(self, seconds: float) -> Load:
        """Let it run for a moment, measure the next one, stop it."""
        self._signal(signal.SIGCONT)
        self.sleep(_SETTLE_S)
        tokens, begun_s = self._tokens, time.monotonic()
        whole_ms, around_ms = self._processor_ms()
        self.sleep(seconds)
        tokens, took_s = self._tokens - tokens, time.monotonic() - begun_s
        later_whole_ms, later_around_ms = self._processor_ms()
        self.stop()
        return Load(tokens / took_s, (later_whole_ms - whole_ms) / tokens, (later_around_ms - around_ms) / tokens)

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            os.kill(pid, number)

    async def _load(self) -> None:
        async with AsyncClient(self._running.endpoint) as client:
            await asyncio.gather(*(self._one(client, number) for number in range(self._at_once)))

    async def _one(self, client: AsyncClient, number: int) -> None:
        while not self._over:
            prompt = f"{number} water wheels"
            generation = client.generate(prompt, max_tokens=self._output, ignore_eos=True, temperature=1.0)
            async for delta in generation:
                self._tokens += len(delta.token_ids)

    def _processor_ms(self) -> tuple[float, float]:
        """What the threads have used so far: all of them, and those that do not compute."""
        whole = around = 0.0
        for service, pid in self._running.pids().items():
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError):  # it has ended
                    used_ms = int((thread / "schedstat").read_text().split()[0]) / 1e6
                    whole += used_ms
                    if service != "executor" or thread.name == str(pid):
                        around += used_ms
        return whole, around


def _middle(found: Sequence[float]) -> float:
    return statistics.median(found)


def _certain(found: Sequence[float]) -> tuple[float, float]:
    """Between which of the values the true median lies with 95 %, as the binomial distribution has it."""
    ordered, count = sorted(found), len(found)
    aside = max(0, int(count / 2 - 0.98 * count**0.5))
    return ordered[aside], ordered[count - 1 - aside]
