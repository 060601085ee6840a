"""What a lane needs of a device: memory, streams that work in order, events between them, and recorded work.

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
class Buffer:
    """Memory under a name. data: on the host, pinned, or on the device. It stays where it is."""

    name: str
    data: torch.Tensor
    on_host: bool = False


@dataclass(slots=True, eq=False)
class Peak:
    """The most bytes that tensors took."""

    bytes: int = 0


@dataclass(slots=True, frozen=True)
class Uses:
    """What a piece of work reads and what it writes."""

    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()


class Event(Protocol):
    """A point in a stream's work."""

    def wait(self) -> None:
        """Have the host wait until the stream has come there. Raises DeviceLostError."""


class Graph(Protocol):
    """Recorded work, to be replayed with the same memory."""


class Stream(Protocol):
    """Work that is done in the order in which it was queued."""

    def copy(self, target: Buffer, source: Buffer, count: int) -> None:
        """Queue a copy of the first `count` bytes."""

    def copy_parts(self, target: Buffer, source: Buffer, parts: Sequence[tuple[int, int, int]]) -> None:
        """Queue copies of (first byte in the target, in the source, how many)."""

    def run(self, work: Work, uses: Uses) -> None:
        """Queue what the work queues. Raises MemoryError when the device has no memory left for it."""

    def capture(self, work: Work, uses: Uses) -> Graph:
        """Record what the work would queue, without doing it. Raises CaptureError."""

    def replay(self, graph: Graph) -> None:
        """Queue recorded work."""

    def record(self, *, timed: bool = False) -> Event:
        """The point after everything queued so far. timed: it is to be told when that was."""

    def wait(self, event: Event) -> None:
        """Let what is queued from now on begin only after the event."""


class Device(Protocol):
    """One device. What is allocated lives as long as the process."""

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors are."""

    def stream(self, name: str) -> Stream:
        """A new stream."""

    def buffer(self, name: str, count: int) -> Buffer:
        """Zeroed bytes on the device. Raises MemoryError."""

    def host_buffer(self, name: str, count: int) -> Buffer:
        """Zeroed bytes on the host that the device copies from and to by itself."""

    def state(self, name: str, data: torch.Tensor) -> Buffer:
        """A tensor that exists already as a buffer."""

    def written(self, buffer: Buffer) -> AbstractContextManager[NDArray[np.uint8]]:
        """A buffer on the host while the host writes it."""

    def read(self, buffer: Buffer) -> AbstractContextManager[NDArray[np.uint8]]:
        """A buffer on the host while the host reads it."""

    def elapsed_us(self, first: Event, second: Event) -> float:
        """Time between two timed events that are over."""

    def trim(self) -> None:
        """Give memory back that is kept for reuse."""

    def held(self) -> int:
        """Bytes that this process holds for its tensors, those kept for reuse included."""

    def peak(self) -> AbstractContextManager[Peak]:
        """Measures the most that tensors take more than before; to be read afterwards."""

    def free(self) -> tuple[int, int]:
        """Bytes free and altogether."""
