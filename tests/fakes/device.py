"""A device that computes on the processor, whose streams are ordered queues, and that finds what nothing orders.

Work is queued, and done later, in an order that a seed chooses among those that streams and events allow. Every use of a
buffer is noted with a vector clock (Lamport, 1978; as in FastTrack, Flanagan and Freund, 2009): streams and the host each
have a component, events carry clocks from one to another. A use that is not ordered after the write before it, or a write
that is not ordered after the reads before it, is a race whether or not this seed shows it, and raises.

Graphs are lists of torch operations, noted once and done again with the same tensors, as a GPU does: what the host decided
or looked at when they were recorded is frozen in them.
"""

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noria.services.executor.cuda.device.streams import (
    BufferUses,
    CaptureError,
    DeviceBuffer,
    DeviceEvent,
    DeviceGraph,
    PeakMemory,
    Work,
)

HOST = "host"
Clock = dict[str, int]


class RaceError(AssertionError):
    """Two uses of a buffer that nothing orders."""


def _join(one: Clock, other: Clock) -> None:
    for name, count in other.items():
        one[name] = max(one.get(name, 0), count)


@dataclass(eq=False)
class _Use:
    who: str
    count: int
    what: str


@dataclass(eq=False)
class _Task:
    what: str
    work: Callable[[], None] | None = None
    event: "FakeEvent | None" = None
    awaited: "FakeEvent | None" = None


@dataclass(eq=False)
class FakeEvent:
    device: "FakeDevice"
    clock: Clock
    done: bool = False
    at_us: float = 0.0

    def wait(self) -> None:
        with self.device.lock:
            while not self.done:
                assert self.device.turn(), "the host waits for an event that will never come"
            _join(self.device.clocks[HOST], self.clock)


@dataclass(eq=False)
class FakeGraph:
    operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]]
    uses: BufferUses

    def replay(self) -> None:
        with torch.inference_mode():
            for operation, arguments, named, results in self.operations:
                found = operation(*arguments, **named)
                for result, new in zip(results, _tensors(found) if results else (), strict=True):
                    result.copy_(new)


class FakeStream:
    def __init__(self, device: "FakeDevice", name: str) -> None:
        self.device, self.name = device, name
        self.tasks: deque[_Task] = deque()

    def copy(self, target: DeviceBuffer, source: DeviceBuffer, count: int) -> None:
        self.copy_parts(target, source, ((0, 0, count),))

    def copy_parts(self, target: DeviceBuffer, source: DeviceBuffer, parts: Sequence[tuple[int, int, int]]) -> None:
        def work() -> None:
            for to, first, count in parts:
                target.data[to : to + count] = source.data[first : first + count]

        self._queue(f"copy {source.name} to {target.name}", work, BufferUses((source,), (target,)))

    def run(self, work: Work, uses: BufferUses) -> None:
        if (trouble := self.device.trouble.pop(0) if self.device.trouble else None) is not None:
            raise trouble
        self._queue("work", work, uses)

    def capture(self, work: Work, uses: BufferUses) -> FakeGraph:
        with self.device.lock:
            if self.device.refuses:
                raise CaptureError("refused")
            self.device.captures += 1
            self.device.finish()  # as PyTorch does
            kept = [(buffer.data, buffer.data.clone()) for buffer in uses.writes]
            recorder = _Recorder()
            with recorder:
                work()
            for data, before in kept:
                data.copy_(before)
            return FakeGraph(recorder.operations, uses)

    def replay(self, graph: DeviceGraph) -> None:
        assert isinstance(graph, FakeGraph)
        self.device.replays += 1
        self._queue("graph", graph.replay, graph.uses)

    def record(self, *, timed: bool = False) -> FakeEvent:
        with self.device.lock:
            event = FakeEvent(self.device, dict(self._tick()))
            self.tasks.append(_Task("event", event=event))
            return event

    def wait(self, event: DeviceEvent) -> None:
        assert isinstance(event, FakeEvent)
        with self.device.lock:
            self.tasks.append(_Task("wait", awaited=event))
            if self.name not in self.device.forgets:
                _join(self.device.clocks[self.name], event.clock)

    def _queue(self, what: str, work: Work, uses: BufferUses) -> None:
        with self.device.lock:
            self._tick()
            self.device.note(self.name, what, uses)
            self.tasks.append(_Task(what, work=work))
            self.device.perhaps()

    def _tick(self) -> Clock:
        clock = self.device.clocks[self.name]
        _join(clock, self.device.clocks[HOST])  # what is queued comes after what the host did before
        clock[self.name] = clock.get(self.name, 0) + 1
        return clock


@dataclass(eq=False)
class FakeDevice:
    """eagerness: how likely queued work is done at once, again and again.

    trouble: what the next pieces of work raise, None for nothing. refuses: nothing can be recorded. forgets: streams that do
    not wait for events. stalled: streams that do nothing for now.
    """

    seed: int = 0
    eagerness: float = 0.5
    trouble: list[Exception | None] = field(default_factory=list)
    refuses: bool = False
    forgets: frozenset[str] = frozenset()
    stalled: frozenset[str] = frozenset()
    captures: int = 0
    replays: int = 0

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.random = random.Random(self.seed)
        self.streams: list[FakeStream] = []
        self.clocks: dict[str, Clock] = {HOST: {HOST: 1}}
        self.writes: dict[DeviceBuffer, _Use] = {}
        self.reads: dict[DeviceBuffer, dict[str, _Use]] = defaultdict(dict)
        self.now_us = 0.0

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def stream(self, name: str) -> FakeStream:
        while name in self.clocks:
            name += "'"
        stream = FakeStream(self, name)
        self.clocks[name] = {}
        self.streams.append(stream)
        return stream

    def buffer(self, name: str, count: int) -> DeviceBuffer:
        return DeviceBuffer(name, torch.zeros(count, dtype=torch.uint8))

    def host_buffer(self, name: str, count: int) -> DeviceBuffer:
        return DeviceBuffer(name, torch.zeros(count, dtype=torch.uint8), on_host=True)

    def state(self, name: str, data: torch.Tensor) -> DeviceBuffer:
        return DeviceBuffer(name, data)

    @contextmanager
    def written(self, buffer: DeviceBuffer) -> Iterator[NDArray[np.uint8]]:
        yield from self._hosted(buffer, BufferUses((), (buffer,)))

    @contextmanager
    def read(self, buffer: DeviceBuffer) -> Iterator[NDArray[np.uint8]]:
        yield from self._hosted(buffer, BufferUses((buffer,), ()))

    def _hosted(self, buffer: DeviceBuffer, uses: BufferUses) -> Iterator[NDArray[np.uint8]]:
        assert buffer.on_host
        with self.lock:
            self.perhaps()
            clock = self.clocks[HOST]
            clock[HOST] += 1
            self.note(HOST, "the host", uses)
            yield buffer.data.numpy()
            clock[HOST] += 1

    def elapsed_us(self, first: DeviceEvent, second: DeviceEvent) -> float:
        assert isinstance(first, FakeEvent) and isinstance(second, FakeEvent) and first.done and second.done
        return second.at_us - first.at_us

    def trim(self) -> None:
        pass

    def held(self) -> int:
        return 0

    @contextmanager
    def peak(self) -> Iterator[PeakMemory]:
        found = PeakMemory()
        yield found
        found.bytes = 1 << 20

    def free(self) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def note(self, who: str, what: str, uses: BufferUses) -> None:
        clock = self.clocks[who]
        use = _Use(who, clock[who], what)
        for buffer in uses.reads:
            self._ordered(buffer, use, clock, self.writes.get(buffer))
            self.reads[buffer][who] = use
        for buffer in uses.writes:
            self._ordered(buffer, use, clock, self.writes.get(buffer))
            for earlier in self.reads[buffer].values():
                self._ordered(buffer, use, clock, earlier)
            self.writes[buffer] = use
            self.reads[buffer] = {}

    def _ordered(self, buffer: DeviceBuffer, use: _Use, clock: Clock, earlier: _Use | None) -> None:
        if earlier is not None and clock.get(earlier.who, 0) < earlier.count:
            raise RaceError(
                f"{buffer.name}: {use.what} on {use.who} is not ordered after {earlier.what} on {earlier.who}"
            )

    def perhaps(self) -> None:
        """Let some of the queued work be done."""
        while self.random.random() < self.eagerness and self.turn():
            pass

    def turn(self) -> bool:
        """Do one piece of queued work, of any stream that can go on; False when none can."""
        able = [each for each in self.streams if each.tasks and self._able(each)]
        if not able:
            return False
        task = self.random.choice(able).tasks.popleft()
        self.now_us += 1.0
        if task.work is not None:
            task.work()
        if task.event is not None:
            task.event.done, task.event.at_us = True, self.now_us
        return True

    def finish(self) -> None:
        with self.lock:
            while self.turn():
                pass

    def _able(self, stream: FakeStream) -> bool:
        awaited = stream.tasks[0].awaited
        return stream.name not in self.stalled and (awaited is None or awaited.done or stream.name in self.forgets)


class _Recorder(TorchDispatchMode):
    """Notes every operation and does it too; its results are where replays will put theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise CaptureError(f"{func} looks at a number on the device")
        found = func(*args, **named)
        aliases = [each.alias_info for each in func._schema.returns]
        if any(each is not None and each.is_write for each in aliases):
            self.operations.append((func, args, named, []))
        elif not _views(found, (args, named)):
            self.operations.append((func, args, named, _tensors(found)))
        return found


def _views(found: Any, given: Any) -> bool:
    """Whether results lie where arguments do; an operation that may give a view does not always."""
    places = {each.untyped_storage().data_ptr() for each in tree_leaves(given) if isinstance(each, torch.Tensor)}
    return any(each.untyped_storage().data_ptr() in places for each in _tensors(found))


def _tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [each for each in found if isinstance(each, torch.Tensor)] if isinstance(found, tuple | list) else []
