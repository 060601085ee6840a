"""The device that PyTorch's CUDA build drives: NVIDIA's, and AMD's under ROCm by the same names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.cuda import _POOL_HANDLE

from noria.services.executor.cuda.device.streams import (
    BufferUses,
    CaptureError,
    DeviceBuffer,
    DeviceEvent,
    DeviceGraph,
    DeviceLostError,
    PeakMemory,
    Work,
)
from noria.shared.errors import UserError

_BY_HAND_BYTES: Final = 256 << 20
_FATAL: Final = ("illegal", "device-side assert", "unspecified launch failure", "ecc error", "hardware", "misaligned")


def open_device(index: int = 0) -> "TorchDevice":
    """The GPU of this number. Raises UserError saying what is missing and what to do."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        raise UserError(
            f"executor.device is cuda, but this PyTorch ({torch.__version__}) is built for processors alone; install a CUDA "
            "build, for instance `pip install 'noria[cuda]'` from an index that has one, or choose --device cpu"
        )
    if not torch.cuda.is_available():
        raise UserError(
            "executor.device is cuda, but PyTorch finds no GPU that it can use; see whether `nvidia-smi` lists one and its "
            "driver is new enough, in a container whether it was started with `--gpus all`, or choose --device cpu"
        )
    if index >= torch.cuda.device_count():
        raise UserError(f"there is no GPU {index}: PyTorch finds {torch.cuda.device_count()}")
    return TorchDevice(index)


class TorchEvent:
    """A CUDA event. The host sleeps while it waits."""

    def __init__(self, *, timed: bool) -> None:
        self.event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def wait(self) -> None:
        """Have the host wait."""
        try:
            self.event.synchronize()
        except RuntimeError as error:
            raise DeviceLostError(_first_line(error)) from error


class TorchGraph:
    """A CUDA graph."""

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()


class TorchStream:
    """A CUDA stream. pool: the memory that all graphs share."""

    def __init__(self, name: str, stream: torch.cuda.Stream, pool: _POOL_HANDLE) -> None:
        self.name = name
        self._stream = stream
        self._pool = pool

    def copy(self, target: DeviceBuffer, source: DeviceBuffer, count: int) -> None:
        """Queue a copy."""
        self.copy_parts(target, source, ((0, 0, count),))

    def copy_parts(self, target: DeviceBuffer, source: DeviceBuffer, parts: Sequence[tuple[int, int, int]]) -> None:
        """Queue copies."""
        with torch.cuda.stream(self._stream):
            for to, first, count in parts:
                if count:
                    target.data[to : to + count].copy_(source.data[first : first + count], non_blocking=True)

    def run(self, work: Work, uses: BufferUses) -> None:
        """Queue what the work queues."""
        del uses
        try:
            with torch.cuda.stream(self._stream):
                work()
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(_first_line(error)) from error
        except RuntimeError as error:
            if any(each in str(error).lower() for each in _FATAL):
                raise DeviceLostError(_first_line(error)) from error
            raise

    def capture(self, work: Work, uses: BufferUses) -> TorchGraph:
        """Record what the work would queue."""
        del uses
        recorded = TorchGraph()
        try:
            # Other threads wait for events meanwhile, which a stricter mode would take for a fault.
            with torch.cuda.graph(
                recorded.graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                work()
        except (RuntimeError, NotImplementedError) as error:
            if any(each in str(error).lower() for each in _FATAL):
                raise DeviceLostError(_first_line(error)) from error
            raise CaptureError(_first_line(error)) from error
        return recorded

    def replay(self, graph: DeviceGraph) -> None:
        """Queue recorded work."""
        assert isinstance(graph, TorchGraph)
        with torch.cuda.stream(self._stream):
            graph.graph.replay()

    def record(self, *, timed: bool = False) -> TorchEvent:
        """The point after everything queued so far."""
        event = TorchEvent(timed=timed)
        event.event.record(self._stream)
        return event

    def wait(self, event: DeviceEvent) -> None:
        """Let what is queued from now on begin only after the event."""
        assert isinstance(event, TorchEvent)
        self._stream.wait_event(event.event)


class TorchDevice:
    """One GPU."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def torch_device(self) -> torch.device:
        """Where its tensors are."""
        return self._device

    def stream(self, name: str) -> TorchStream:
        """A new stream."""
        return TorchStream(name, torch.cuda.Stream(self._device), self._pool)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def buffer(self, name: str, count: int) -> DeviceBuffer:
        """Zeroed bytes on the device, zeroed before anybody uses them."""
        try:
            data = torch.zeros(count, dtype=torch.uint8, device=self._device)
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(_first_line(error)) from error
        torch.cuda.current_stream(self._device).synchronize()
        return DeviceBuffer(name, data)

    def host_buffer(self, name: str, count: int) -> DeviceBuffer:
        """Zeroed, pinned bytes on the host. Raises UserError when the system does not let so much be pinned.

        Much is pinned by hand, for as long as the process lives: torch's allocator rounds up to a power of two.
        """
        if count < _BY_HAND_BYTES:
            return DeviceBuffer(name, torch.zeros(count, dtype=torch.uint8, pin_memory=count > 0), on_host=True)
        data = torch.zeros(count, dtype=torch.uint8)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if code := int(runtime.cudaHostRegister(data.data_ptr(), count, 0)):
            raise UserError(
                f"{count >> 20} MiB of host memory cannot be pinned for the GPU (CUDA error {code}); lower "
                "--cpu-offload-space, or raise the limit on locked memory (`ulimit -l`)"
            )
        return DeviceBuffer(name, data, on_host=True)

    def state(self, name: str, data: torch.Tensor) -> DeviceBuffer:
        """A tensor as a buffer, with everything that was done to it over."""
        torch.cuda.current_stream(self._device).synchronize()
        return DeviceBuffer(name, data)

    @contextmanager
    def written(self, buffer: DeviceBuffer) -> Iterator[NDArray[np.uint8]]:
        """A buffer on the host while the host writes it."""
        assert buffer.on_host
        yield buffer.data.numpy()

    @contextmanager
    def read(self, buffer: DeviceBuffer) -> Iterator[NDArray[np.uint8]]:
        """A buffer on the host while the host reads it."""
        assert buffer.on_host
        yield buffer.data.numpy()

    def elapsed_us(self, first: DeviceEvent, second: DeviceEvent) -> float:
        """Time between two timed events that are over."""
        assert isinstance(first, TorchEvent) and isinstance(second, TorchEvent)
        return 1000.0 * float(first.event.elapsed_time(second.event))

    def trim(self) -> None:
        """Give memory back that torch keeps for reuse."""
        torch.cuda.empty_cache()

    def held(self) -> int:
        """Bytes that torch holds."""
        return torch.cuda.memory_reserved(self._device)

    @contextmanager
    def peak(self) -> Iterator[PeakMemory]:
        """Measures the most that tensors take more than before."""
        found = PeakMemory()
        torch.cuda.synchronize(self._device)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        yield found
        torch.cuda.synchronize(self._device)
        found.bytes = torch.cuda.max_memory_allocated(self._device) - before

    def free(self) -> tuple[int, int]:
        """Bytes free and altogether."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(free), int(total)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
