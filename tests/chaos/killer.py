"""Kills a stack's processes as planned: finds them by their locks, and restarts the supervisor after its own kills."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chaos.kill_plan import SERVICES, KillAction
from e2e.harness import Stack

from noria.shared.process.locks import living_holder

_BACK_S = 90.0
_POLL_S = 0.02


@dataclass(frozen=True)
class PerformedKill:
    """One kill that was performed, and its time on the wall clock."""

    kill: KillAction
    at_s: float


class ProcessKiller:
    """Performs kills on a stack. answers_under_way: returns whether any answer has begun and not ended."""

    def __init__(self, stack: Stack, answers_under_way: Callable[[], bool]) -> None:
        self.hits: list[PerformedKill] = []
        self.failure = ""
        self._stack = stack
        self._under_way = answers_under_way

    async def run(self, kills: Iterable[KillAction], limit_s: float) -> None:
        """Perform kills one after the other until `limit_s` has passed; `failure` says what did not come back."""
        until_s = time.monotonic() + limit_s
        for kill in kills:
            await asyncio.sleep(kill.after_s)
            if time.monotonic() > until_s:
                return
            try:
                await self._perform(kill)
            except TimeoutError as error:
                self.failure = str(error)
                return

    async def _perform(self, kill: KillAction) -> None:
        # A process that is not there cannot be killed: wait for it.
        before = {name: await self._wait_for_process(name) for name in kill.victims}
        match kill.kind:
            case "kill":
                if kill.mid_answer:
                    await self._wait(self._under_way, "answers are under way")
                    for pid in before.values():
                        _signal(pid, signal.SIGSTOP)
                    await self._wait(self._under_way, "answers are still under way")
                self._record(kill)
                for pid in before.values():
                    _signal(pid, signal.SIGKILL)
                if kill.alone:
                    await self._replaced(before)
                    await self._wait(self._ready, "the stack is ready again")
            case "hang":
                self._record(kill)
                for pid in before.values():
                    _signal(pid, signal.SIGSTOP)
                await self._replaced(before)
            case "supervisor":
                self._record(kill)
                await self._restart()
            case _:
                everybody = [pid for name in SERVICES if (pid := self._pid(name))]
                self._record(kill)
                for pid in everybody:
                    _signal(pid, signal.SIGKILL)
                await self._restart()
                await self._wait(self._ready, "the stack is ready again")

    async def _restart(self) -> None:
        self._stack.process.kill()
        self._stack.process.wait()
        await asyncio.sleep(0.3)
        self._stack.start()

    def _record(self, kill: KillAction) -> None:
        self.hits.append(PerformedKill(kill, time.time()))

    def _pid(self, name: str) -> int:
        holder = living_holder(self._stack.runtime_dir, name)
        return holder.pid if holder is not None else 0

    async def _wait_for_process(self, name: str) -> int:
        found = 0

        def there() -> bool:
            nonlocal found
            found = self._pid(name)
            return found > 0

        await self._wait(there, f"{name} is there")
        return found

    async def _replaced(self, before: dict[str, int]) -> None:
        await self._wait(
            lambda: all(self._pid(name) not in (0, pid) for name, pid in before.items()),
            f"{', '.join(before)} replaced",
        )

    def _ready(self) -> bool:
        state = self._stack.process.poll()
        if state is not None:
            raise TimeoutError(f"the stack ended with {state}:\n{self._stack.log()[-3000:]}")
        return self._stack.ready()

    async def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _BACK_S
        while not await asyncio.to_thread(condition):
            if self._stack.process.poll() is not None:
                raise TimeoutError(f"the stack ended with {self._stack.process.poll()} before {what}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {_BACK_S:g} s: {what}")
            await asyncio.sleep(_POLL_S)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
