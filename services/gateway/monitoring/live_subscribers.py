"""What consoles are told: one watch over the stack for all of them, which asks nobody anything while none is open.

Five times a second the scheduler is asked what it did, once a second every service who it is and admission how long things
took. What is told goes to each console's bounded queue; one that does not read loses the oldest, and is told so.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from noria.proto.base import Service
from noria.proto.lifecycle import Snapshot
from noria.shared.actor.inspect import Inspector
from noria.shared.config.config import RuntimeSettings
from noria.shared.telemetry.latency import Latency
from noria.shared.telemetry.metrics import told

TICK_S: Final = 0.2
_SURVEY_TICKS: Final = 5
_ANSWER_S: Final = 0.5
WATCHERS_MAX: Final = 16
_QUEUE_MAX: Final = 64


class Live(msgspec.Struct, frozen=True):
    """The part of the scheduler's answer that is looked into here: up to where it told."""

    serial: int = 0


class Watcher:
    """One console's queue of events; missed: how many it did not read in time. over: there will be no more."""

    def __init__(self) -> None:
        self.missed = 0
        self.over = False
        self._events: deque[bytes] = deque()
        self._ready = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Queue an event."""
        if len(self._events) >= _QUEUE_MAX:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._ready.set()

    def end(self) -> None:
        """Tell nothing more."""
        self.over = True
        self._ready.set()

    async def next(self) -> bytes:
        """The next event, waiting for it; empty when there are no more."""
        while not self._events:
            if self.over:
                return b""
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()


class Watch:
    """Asks while somebody watches. leaving: whether the gateway is about to stop, so that nobody may hold it up."""

    def __init__(self, runtime: RuntimeSettings, leaving: Callable[[], bool]) -> None:
        self._leaving = leaving
        self.watchers: set[Watcher] = set()
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._fresh = False

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """A watcher for as long as the context lasts."""
        watcher = Watcher()
        self.watchers.add(watcher)
        self._fresh = True  # the next answer names the requests that there are, for the newcomer
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield watcher
        finally:
            self.watchers.discard(watcher)

    async def _run(self) -> None:
        """Ask until nobody watches any more."""
        inspector, latency = Inspector(self._runtime), Latency()
        since, tick, due_s = "", 0, time.monotonic()
        try:
            while self.watchers and not self._leaving():
                if self._fresh:
                    since, self._fresh = "", False
                live = await asyncio.to_thread(_look, inspector, since)
                since = str(msgspec.json.decode(live, type=Live).serial) if live else ""
                if live:
                    self._tell("live", live)
                if tick % _SURVEY_TICKS == 0:
                    self._tell("state", await asyncio.to_thread(self._survey, inspector, latency))
                tick += 1
                due_s = max(due_s + TICK_S, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
        finally:
            self._task = None
            inspector.close()
            if self._leaving():
                for watcher in self.watchers:
                    watcher.end()
            elif self.watchers:  # somebody came at the last moment
                self._task = asyncio.get_running_loop().create_task(self._run())

    def _survey(self, inspector: Inspector, latency: Latency) -> bytes:
        """Ask who is there, and how long things took."""
        supervised = self._runtime.supervised
        services = tuple(each for each in Service if supervised or each is not Service.SUPERVISOR)
        who = inspector.ask(services, "who", "", _ANSWER_S)
        metrics = inspector.ask((Service.ADMISSION,), "metrics", "", _ANSWER_S).get(Service.ADMISSION)
        if metrics is not None:
            latency.take(told(metrics.json), time.monotonic())
        state = {
            "services": [_service(each, who.get(each)) for each in services],
            "latency": latency.shown(),
            "ledger": latency.ledger,
            "missed": sum(each.missed for each in self.watchers),
        }
        return msgspec.json.encode(state)

    def _tell(self, kind: str, data: bytes) -> None:
        event = b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
        for watcher in self.watchers:
            watcher.put(event)


def _look(inspector: Inspector, since: str) -> bytes:
    """Ask the scheduler what it did; empty when it does not answer."""
    answer = inspector.ask((Service.SCHEDULER,), "live", since, _ANSWER_S).get(Service.SCHEDULER)
    return b"" if answer is None or answer.json == b"null" else answer.json


def _service(service: Service, answer: Snapshot | None) -> dict[str, Any]:
    if answer is None:
        return {"service": service.value, "state": "silent"}
    known: dict[str, Any] = msgspec.json.decode(answer.json) or {}
    return {"service": service.value, "pid": answer.pid, "state": answer.state.value, **known}
