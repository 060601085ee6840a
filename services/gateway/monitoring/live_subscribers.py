"""Polls the services for all open consoles and distributes the events; polls nothing while no console is open.

The scheduler is asked five times a second for its live view, every service once a second for its state, and admission once
a second for latencies. Each console has a bounded queue; one that does not read loses the oldest events.
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
from noria.shared.telemetry.metrics import decode_values
from noria.shared.telemetry.recent_latencies import RecentLatencies

TICK_S: Final = 0.2
_SERVICES_TICKS: Final = 5
_INSPECT_TIMEOUT_S: Final = 0.5
SUBSCRIBERS_MAX: Final = 16
_QUEUE_MAX: Final = 64


class LiveSerial(msgspec.Struct, frozen=True):
    """The one field of the scheduler's live view that is read here. serial: of its newest event."""

    serial: int = 0


class LiveSubscriber:
    """One console's bounded queue of events. missed: events dropped unread. closed: no more events will come."""

    def __init__(self) -> None:
        self.missed = 0
        self.closed = False
        self._events: deque[bytes] = deque()
        self._ready = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Queue an event, dropping the oldest one from a full queue."""
        if len(self._events) >= _QUEUE_MAX:
            self._events.popleft()
            self.missed += 1
        self._events.append(event)
        self._ready.set()

    def close(self) -> None:
        """Mark the queue as complete, and wake its reader."""
        self.closed = True
        self._ready.set()

    async def next(self) -> bytes:
        """Wait for the next event; empty when there are no more."""
        while not self._events:
            if self.closed:
                return b""
            self._ready.clear()
            await self._ready.wait()
        return self._events.popleft()


class LiveSubscribers:
    """All open consoles, and the task that polls services for them.

    leaving: whether the gateway is stopping, which closes all consoles.
    """

    def __init__(self, runtime: RuntimeSettings, leaving: Callable[[], bool]) -> None:
        self._leaving = leaving
        self.open: set[LiveSubscriber] = set()
        self._runtime = runtime
        self._task: asyncio.Task[None] | None = None
        self._send_all = False

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[LiveSubscriber]:
        """Subscribe to events for as long as the context lasts."""
        subscriber = LiveSubscriber()
        self.open.add(subscriber)
        self._send_all = True  # the next answer names the requests that there are, for the newcomer
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield subscriber
        finally:
            self.open.discard(subscriber)

    async def _run(self) -> None:
        """Poll until no console is open."""
        inspector, latency = Inspector(self._runtime), RecentLatencies()
        since, tick, due_s = "", 0, time.monotonic()
        try:
            while self.open and not self._leaving():
                if self._send_all:
                    since, self._send_all = "", False
                live = await asyncio.to_thread(_ask_scheduler, inspector, since)
                since = str(msgspec.json.decode(live, type=LiveSerial).serial) if live else ""
                if live:
                    self._publish("live", live)
                if tick % _SERVICES_TICKS == 0:
                    self._publish("state", await asyncio.to_thread(self._ask_services, inspector, latency))
                tick += 1
                due_s = max(due_s + TICK_S, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
        finally:
            self._task = None
            inspector.close()
            if self._leaving():
                for subscriber in self.open:
                    subscriber.close()
            elif self.open:  # somebody came at the last moment
                self._task = asyncio.get_running_loop().create_task(self._run())

    def _ask_services(self, inspector: Inspector, latency: RecentLatencies) -> bytes:
        """Ask every service for its state and admission for latencies; returns JSON."""
        supervised = self._runtime.supervised
        services = tuple(each for each in Service if supervised or each is not Service.SUPERVISOR)
        who = inspector.ask(services, "who", "", _INSPECT_TIMEOUT_S)
        metrics = inspector.ask((Service.ADMISSION,), "metrics", "", _INSPECT_TIMEOUT_S).get(Service.ADMISSION)
        if metrics is not None:
            latency.add(decode_values(metrics.json), time.monotonic())
        state = {
            "services": [_service(each, who.get(each)) for each in services],
            "latency": latency.rows(),
            "ledger": latency.ledger,
            "missed": sum(each.missed for each in self.open),
        }
        return msgspec.json.encode(state)

    def _publish(self, kind: str, data: bytes) -> None:
        event = b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"
        for subscriber in self.open:
            subscriber.put(event)


def _ask_scheduler(inspector: Inspector, since: str) -> bytes:
    """Ask the scheduler for its live view; empty when it does not answer."""
    answer = inspector.ask((Service.SCHEDULER,), "live", since, _INSPECT_TIMEOUT_S).get(Service.SCHEDULER)
    return b"" if answer is None or answer.json == b"null" else answer.json


def _service(service: Service, answer: Snapshot | None) -> dict[str, Any]:
    if answer is None:
        return {"service": service.value, "state": "silent"}
    known: dict[str, Any] = msgspec.json.decode(answer.json) or {}
    return {"service": service.value, "pid": answer.pid, "state": answer.state.value, **known}
