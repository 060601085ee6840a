"""The buffers that steps travel in: two pairs in turn, and one place that graphs read and write.

While the device computes from what one pair brought, the host fills the other. A step's input is copied on the device
from its pair to where every graph reads it, so that a shape needs one graph, not two; its output goes the other way.
"""

from dataclasses import dataclass
from typing import Final

from noria.services.executor.cuda.device.streams import Device, DeviceBuffer

PAIRS: Final = 2


@dataclass(slots=True, eq=False)
class BufferPair:
    """A step's buffers on host and device, for input and output. index: pool rows of the blocks that are copied.

    busy: from the time the host writes it until it has read what came back.
    """

    host_in: DeviceBuffer
    device_in: DeviceBuffer
    device_out: DeviceBuffer
    host_out: DeviceBuffer
    host_index: DeviceBuffer
    index: DeviceBuffer
    busy: bool = False


class StepBuffers:
    """Both pairs in turn; a step that needs more room gets larger ones, outside the graphs."""

    def __init__(self, device: Device, in_bytes: int, out_bytes: int) -> None:
        self._device = device
        self._turn = 0
        self._both = [
            BufferPair(
                device.host_buffer(f"host in {number}", in_bytes),
                device.buffer(f"device in {number}", in_bytes),
                device.buffer(f"device out {number}", out_bytes),
                device.host_buffer(f"host out {number}", out_bytes),
                device.host_buffer(f"host index {number}", 0),
                device.buffer(f"index {number}", 0),
            )
            for number in range(PAIRS)
        ]
        self.step_in = device.buffer("step in", in_bytes)
        self.step_out = device.buffer("step out", out_bytes)
        self._large_in, self._large_out = self.step_in, self.step_out

    @property
    def device_bytes(self) -> int:
        """Bytes on the device."""
        pairs = [each for pair in self._both for each in (pair.device_in, pair.device_out, pair.index)]
        return sum(len(each.data) for each in (*pairs, self.step_in, self.step_out))

    def take(self, in_bytes: int, out_bytes: int, index_bytes: int) -> BufferPair:
        """The next pair, with room for a step of so many bytes."""
        pair = self._both[self._turn]
        assert not pair.busy, "a third step while two are in flight"
        pair.host_in, pair.device_in = self._host(pair.host_in, in_bytes), self._grown(pair.device_in, in_bytes)
        pair.host_out, pair.device_out = self._host(pair.host_out, out_bytes), self._grown(pair.device_out, out_bytes)
        pair.host_index, pair.index = self._host(pair.host_index, index_bytes), self._grown(pair.index, index_bytes)
        self._turn = (self._turn + 1) % PAIRS
        pair.busy = True
        return pair

    def room(self, in_bytes: int, out_bytes: int) -> tuple[DeviceBuffer, DeviceBuffer]:
        """Where a step computes: what graphs use, where it fits, else larger buffers."""
        self._large_in = self._grown(self._large_in, in_bytes)
        self._large_out = self._grown(self._large_out, out_bytes)
        fits = in_bytes <= len(self.step_in.data) and out_bytes <= len(self.step_out.data)
        return (self.step_in, self.step_out) if fits else (self._large_in, self._large_out)

    def _grown(self, buffer: DeviceBuffer, count: int) -> DeviceBuffer:
        return buffer if len(buffer.data) >= count else self._device.buffer(f"{buffer.name}+", _power(count))

    def _host(self, buffer: DeviceBuffer, count: int) -> DeviceBuffer:
        return buffer if len(buffer.data) >= count else self._device.host_buffer(f"{buffer.name}+", _power(count))


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()
