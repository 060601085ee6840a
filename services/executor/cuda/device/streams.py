"""The interface of a device: memory, streams, events and recorded work.

Everything that touches a buffer says so. A real device needs none of that, but the one that tests run on
(`tests/fakes/device.py`) finds by it every use that nothing orders.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Work = Callable[[], None]
"""Queues operations of tensors on the stream that it is run by; waits for none of them."""


class CaptureError(Exception):
    """Work that cannot be recorded; says why, for a person."""


class DeviceLostError(Exception):
    """The device failed in a way that nothing on it survives: the process must end."""


@dataclass(slots=True, eq=False)
class DeviceBuffer:
    """Memory under a name, on the device or pinned on the host, at a fixed address."""

    name: str
    data: torch.Tensor
    on_host: bool = False


@dataclass(slots=True, eq=False)
class PeakMemory:
    """The most bytes that tensors took since a measurement began."""

    bytes: int = 0


@dataclass(slots=True, frozen=True)
class BufferUses:
    """The buffers that a piece of work reads and writes."""

    reads: tuple[DeviceBuffer, ...] = ()
    writes: tuple[DeviceBuffer, ...] = ()


class DeviceEvent(Protocol):
    """An event recorded in a device stream, as CUDA has them: others may wait for it."""

    def wait(self) -> None:
        """Have the host wait until the stream has come there. Raises DeviceLostError."""


class DeviceGraph(Protocol):
    """Recorded work, to be replayed with the same memory."""


class DeviceStream(Protocol):
    """A queue of work on a device, done in order."""

    def copy(self, target: DeviceBuffer, source: DeviceBuffer, count: int) -> None:
        """Queue a copy of the first `count` bytes."""

    def copy_parts(self, target: DeviceBuffer, source: DeviceBuffer, parts: Sequence[tuple[int, int, int]]) -> None:
        """Queue copies of (first byte in the target, in the source, how many)."""

    def run(self, work: Work, uses: BufferUses) -> None:
        """Queue what the work queues. Raises MemoryError when the device has no memory left for it."""

    def capture(self, work: Work, uses: BufferUses) -> DeviceGraph:
        """Record what the work would queue, without doing it. Raises CaptureError."""

    def replay(self, graph: DeviceGraph) -> None:
        """Queue recorded work."""

    def record(self, *, timed: bool = False) -> DeviceEvent:
        """The point after everything queued so far. timed: it is to be told when that was."""

    def wait(self, event: DeviceEvent) -> None:
        """Let what is queued from now on begin only after the event."""


class Device(Protocol):
    """One device, its streams and memory. What is allocated lives as long as the process."""

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors are."""

    def stream(self, name: str) -> DeviceStream:
        """A new stream."""

    def buffer(self, name: str, count: int) -> DeviceBuffer:
        """Zeroed bytes on the device. Raises MemoryError."""

    def host_buffer(self, name: str, count: int) -> DeviceBuffer:
        """Zeroed bytes on the host that the device copies from and to by itself."""

    def state(self, name: str, data: torch.Tensor) -> DeviceBuffer:
        """A tensor that exists already as a buffer."""

    def written(self, buffer: DeviceBuffer) -> AbstractContextManager[NDArray[np.uint8]]:
        """A buffer on the host while the host writes it."""

    def read(self, buffer: DeviceBuffer) -> AbstractContextManager[NDArray[np.uint8]]:
        """A buffer on the host while the host reads it."""

    def elapsed_us(self, first: DeviceEvent, second: DeviceEvent) -> float:
        """Time between two timed events that are over."""

    def trim(self) -> None:
        """Give memory back that is kept for reuse."""

    def held(self) -> int:
        """Bytes that this process holds for its tensors, those kept for reuse included."""

    def peak(self) -> AbstractContextManager[PeakMemory]:
        """Measures the most that tensors take more than before; to be read afterwards."""

    def free(self) -> tuple[int, int]:
        """Bytes free and altogether."""
