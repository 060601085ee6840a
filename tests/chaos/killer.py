"""Who kills: finds the processes by their locks, hits them as planned, and starts what nobody else starts again."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from chaos.plan import SERVICES, Blow
from e2e.harness import Stack

from noria.shared.process.locks import living_holder

_BACK_S = 90.0
_POLL_S = 0.02


@dataclass(frozen=True)
class Hit:
    """What was hit, and when on the wall clock."""

    blow: Blow
    at_s: float


class Killer:
    """Strikes a stack. under_way: whether answers have begun and are not at their end."""

    def __init__(self, stack: Stack, under_way: Callable[[], bool]) -> None:
        self.hits: list[Hit] = []
        self.failure = ""
        self._stack = stack
        self._under_way = under_way

    async def strike(self, blows: Iterable[Blow], limit_s: float) -> None:
        """All of them, one after the other, until the time is over. What cannot be brought back is told in `failure`."""
        until_s = time.monotonic() + limit_s
        for blow in blows:
            await asyncio.sleep(blow.after_s)
            if time.monotonic() > until_s:
                return
            try:
                await self._strike(blow)
            except TimeoutError as error:
                self.failure = str(error)
                return

    async def _strike(self, blow: Blow) -> None:
        # One that is not there cannot be killed: wait for it, unless it is another's turn anyway.
        before = {name: await self._there(name) for name in blow.victims}
        match blow.kind:
            case "kill":
                if blow.midway:
                    await self._wait(self._under_way, "answers are under way")
                    for pid in before.values():
                        _signal(pid, signal.SIGSTOP)
                    await self._wait(self._under_way, "answers are still under way")
                self._note(blow)
                for pid in before.values():
                    _signal(pid, signal.SIGKILL)
                if blow.alone:
                    await self._replaced(before)
                    await self._wait(self._ready, "the stack is ready again")
            case "hang":
                self._note(blow)
                for pid in before.values():
                    _signal(pid, signal.SIGSTOP)
                await self._replaced(before)
            case "supervisor":
                self._note(blow)
                await self._restart()
            case _:
                everybody = [pid for name in SERVICES if (pid := self._pid(name))]
                self._note(blow)
                for pid in everybody:
                    _signal(pid, signal.SIGKILL)
                await self._restart()
                await self._wait(self._ready, "the stack is ready again")

    async def _restart(self) -> None:
        self._stack.process.kill()
        self._stack.process.wait()
        await asyncio.sleep(0.3)
        self._stack.start()

    def _note(self, blow: Blow) -> None:
        self.hits.append(Hit(blow, time.time()))

    def _pid(self, name: str) -> int:
        holder = living_holder(self._stack.runtime_dir, name)
        return holder.pid if holder is not None else 0

    async def _there(self, name: str) -> int:
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
