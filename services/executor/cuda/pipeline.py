"""Brings steps through a device: what is queued on which stream, and what waits for what.

    copy in    [host in → device in]
    compute                          [→ step in][moves][graph, or one after the other][step out →]
    copy out                                                                              [device out → host out]

The host queues all of it without waiting, and waits for the copy out of step N while step N + 1 computes. It knows
neither threads nor plans.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from noria.services.executor.cuda.device.block_copies import STAGING_BYTES, BlockCopies
from noria.services.executor.cuda.device.buffer_pairs import BufferPair, StepBuffers
from noria.services.executor.cuda.device.step_outputs import drawn, experts_read, output_bytes
from noria.services.executor.cuda.device.streams import Device, DeviceEvent
from noria.services.executor.cuda.engine import DeviceModelExecutor
from noria.services.executor.cuda.graph_runner import CudaGraphRunner, StagedStep
from noria.services.executor.cuda.layout.graph_dispatcher import GraphMode
from noria.services.executor.cuda.layout.padding import Padding, beyond, largest_sizes
from noria.services.executor.cuda.layout.step_layout import StepLayout
from noria.services.executor.cuda.layout.step_sizes import StepSizes, needed
from noria.services.executor.model.expert_reads import difference
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import idle_batch
from noria.services.executor.plan.sampling_metadata import SamplerOutput

EXTRA_BYTES: Final = 4 << 20
"""Room in a pair beside the largest step: for what penalties count."""

_LAYOUTS_MAX: Final = 1024


class FinishedFlight(msgspec.Struct, frozen=True):
    """A finished step: what it sampled, microseconds of computing and of waiting before, begin and end on the host's clock.

    way: how it was computed; None where nothing was but moved. experts: how many were read since the last step that sampled.
    """

    drawn: SamplerOutput | None
    compute_us: int
    idle_us: int
    began_ns: int
    ended_ns: int
    way: GraphMode | None
    experts: int = 0


@dataclass(slots=True, eq=False)
class StepFlight:
    """A step that was queued. kept: objects that must live until it is over."""

    batch: Batch
    pair: BufferPair
    sizes: StepSizes
    launched_ns: int
    began: DeviceEvent
    ended: DeviceEvent
    out: DeviceEvent
    way: GraphMode | None
    kept: list[object] = field(default_factory=list)


class Pipeline:
    """Queues steps on one device. graphs_max: how many graphs are kept. clock_ns: the host's. staging_bytes: as in `BlockCopies`."""

    def __init__(
        self,
        device: Device,
        engine: DeviceModelExecutor,
        padding: Padding,
        graphs_max: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        self.engine = engine
        self._device = device
        self._padding = padding
        self._clock_ns = clock_ns
        self._layouts: dict[StepSizes, StepLayout] = {}
        shape = engine.shape
        largest = self._layout(largest_sizes(shape, padding, engine.operations.tile_tokens))
        self._pairs = StepBuffers(device, largest.bytes + EXTRA_BYTES, output_bytes(largest.sizes))
        self._copy_in, self._compute, self._copy_out = map(device.stream, ("copy in", "compute", "copy out"))
        pool = device.state("pool", engine.pool.data)
        self.moves = BlockCopies(device, engine.pool, pool, staging_bytes)
        kept = (pool, *(device.state(f"slots {rank}", each) for rank, each in enumerate(engine.operations.kept)))
        self.graph_runner = CudaGraphRunner(engine, self._compute, kept, graphs_max, largest.sizes.samples)
        self._before: tuple[DeviceEvent, int] | None = None
        self._experts = 0

    def launch(self, batch: Batch) -> StepFlight:
        """Queue a step. Raises MemoryError, and whatever the model's code raises, with nothing of it under way."""
        sizes, padded = self._sizes(batch)
        layout, rows = self._layout(sizes), self.moves.rows(batch)
        pair = self._pairs.take(layout.bytes, output_bytes(sizes), rows.nbytes)
        launched_ns = self._clock_ns()
        try:
            with self._device.written(pair.host_in) as array:
                layout.fill(array, batch)
            self._copy_in.copy(pair.device_in, pair.host_in, layout.bytes)
            if len(rows):
                with self._device.written(pair.host_index) as array:
                    array[: rows.nbytes] = rows.view("u1")
                self._copy_in.copy(pair.index, pair.host_index, rows.nbytes)
            self._compute.wait(self._copy_in.record())
            step_in, step_out = self._pairs.room(layout.bytes, output_bytes(sizes))
            self._compute.copy(step_in, pair.device_in, layout.bytes)
            began = self._compute.record(timed=True)
            if len(rows):
                self.moves.launch(batch, self._compute, pair.index)
            way: GraphMode | None = None
            kept: list[object] = []
            if len(batch.token_ids):
                step = StagedStep(batch, layout, step_in, step_out)
                fits = step_in is self._pairs.step_in
                way, kept = self.graph_runner.compute(step, padded, fits=fits)
            ended = self._compute.record(timed=True)
            self._compute.copy(pair.device_out, step_out, output_bytes(sizes))
            self._copy_out.wait(self._compute.record())
            self._copy_out.copy(pair.host_out, pair.device_out, output_bytes(sizes))
            return StepFlight(batch, pair, sizes, launched_ns, began, ended, self._copy_out.record(), way, kept)
        except BaseException:
            self._settle()
            pair.busy = False
            raise

    def finish(self, flight: StepFlight) -> FinishedFlight:
        """Wait for the oldest step and return what came of it. Raises DeviceLostError."""
        flight.out.wait()
        found, experts = None, 0
        if flight.batch.sampler is not None:
            with self._device.read(flight.pair.host_out) as array:
                found = drawn(flight.sizes, array, flight.batch.sampler)
                total = experts_read(flight.sizes, array)
            experts, self._experts = difference(total, self._experts), total
        flight.pair.busy = False
        compute_us = self._device.elapsed_us(flight.began, flight.ended)
        idle_us, began_ns = 0.0, flight.launched_ns
        if self._before is not None:
            ended, ended_ns = self._before
            idle_us = max(0.0, self._device.elapsed_us(ended, flight.began))
            # The device's own clock counts between steps that follow each other; else the host's, which does not drift.
            if ended_ns > flight.launched_ns:
                began_ns = ended_ns + int(1000 * idle_us)
        ended_ns = min(began_ns + int(1000 * compute_us), self._clock_ns())
        self._before = flight.ended, ended_ns
        return FinishedFlight(found, int(compute_us), int(idle_us), began_ns, ended_ns, flight.way, experts)

    def warm(self, sizes: StepSizes) -> None:
        """Compute a step of padding alone, and record its graph."""
        self._padding_alone(sizes, self.graph_runner.warm)

    def compute_padding(self, sizes: StepSizes) -> None:
        """Compute a step of padding alone, and wait for it. Raises MemoryError."""
        self._padding_alone(sizes, lambda step: self.graph_runner.compute(step, sizes, fits=False))

    @property
    def buffer_bytes(self) -> int:
        """Bytes on the device of the pairs, of what graphs read and write, and of what swaps are staged in."""
        return self._pairs.device_bytes + self.moves.staging_bytes + self.graph_runner.nbytes

    def _padding_alone(self, sizes: StepSizes, use: Callable[[StagedStep], object]) -> None:
        batch = idle_batch(self.engine.shape)
        layout = self._layout(sizes)
        pair = self._pairs.take(layout.bytes, output_bytes(sizes), 0)
        try:
            with self._device.written(pair.host_in) as array:
                layout.fill(array, batch)
            self._compute.copy(self._pairs.step_in, pair.host_in, layout.bytes)
            use(StagedStep(batch, layout, self._pairs.step_in, self._pairs.step_out))
        finally:
            self._settle()
            pair.busy = False

    @property
    def common(self) -> list[StepSizes]:
        """The sizes of steps that are worth recording before anybody asks."""
        return self._padding.common(self.engine.shape)

    def make_room(self) -> None:
        """Free the memory kept for other steps, after one for which there was too little."""
        self._settle()
        self.graph_runner.dispatcher.clear()
        self._device.trim()

    def _sizes(self, batch: Batch) -> tuple[StepSizes, StepSizes]:
        """What a step is padded to: in all, and in what a graph is chosen by."""
        exact = needed(batch, self.engine.operations.tile_tokens)
        padded = self._padding.padded(self.engine.shape, exact)
        return beyond(padded, exact), padded

    def _layout(self, sizes: StepSizes) -> StepLayout:
        found = self._layouts.get(sizes)
        if found is None:
            found = StepLayout(self.engine.shape, sizes, self.engine.operations.tile_tokens)
            if len(self._layouts) < _LAYOUTS_MAX:
                self._layouts[sizes] = found
        return found

    def _settle(self) -> None:
        """Wait for everything that was queued."""
        self._copy_in.record().wait()
        self._compute.record().wait()
        self._copy_out.record().wait()
