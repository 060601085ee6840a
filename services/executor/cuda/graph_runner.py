"""Computes steps by CUDA graphs where there are any, else operation by operation.

A graph of a step that samples plainly is all of it. A step that samples in a way beyond that, with penalties or
log-probabilities, has a graph of its forward pass alone, and computes the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import torch

from noria.services.executor.cuda.device.step_inputs import StepInputs, inputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs, outputs
from noria.services.executor.cuda.device.streams import (
    BufferUses,
    CaptureError,
    DeviceBuffer,
    DeviceGraph,
    DeviceStream,
)
from noria.services.executor.cuda.engine import DeviceModelExecutor
from noria.services.executor.cuda.layout.graph_dispatcher import GraphDispatcher, GraphMode
from noria.services.executor.cuda.layout.padding import plain
from noria.services.executor.cuda.layout.step_layout import StepLayout
from noria.services.executor.cuda.layout.step_sizes import StepSizes
from noria.services.executor.plan.batch import Batch


@dataclass(slots=True, frozen=True)
class StagedStep:
    """A step whose input and output buffers are on the device."""

    batch: Batch
    layout: StepLayout
    step_in: DeviceBuffer
    step_out: DeviceBuffer

    def views(self) -> tuple[StepInputs, StepOutputs]:
        """Its input and output arrays."""
        return inputs(self.layout, self.step_in.data), outputs(self.layout.sizes, self.step_out.data)


Key = tuple[StepSizes, bool]
"""What a graph is found by: padded sizes, and whether it samples."""


class CudaGraphRunner:
    """Runs steps on one device stream: replays a recorded graph, records one, or runs eagerly.

    kept: buffers that every step reads and writes. samples_max: sampled rows.

    on_refused: is called once, with a shape and the reason why it cannot be recorded.
    """

    def __init__(
        self,
        engine: DeviceModelExecutor,
        stream: DeviceStream,
        kept: tuple[DeviceBuffer, ...],
        graphs_max: int,
        samples_max: int,
    ) -> None:
        self.on_refused: Callable[[str, str], None] = lambda shape, reason: None
        self.dispatcher: GraphDispatcher[Key, DeviceGraph] = GraphDispatcher(graphs_max)
        self._engine = engine
        self._stream = stream
        self._kept = kept
        # Where graphs that do not sample leave their logits: one place for all, because a place of its own in each would
        # take the memory of the largest step again and again.
        rows = samples_max if graphs_max else 0
        self._logits = torch.zeros(rows, engine.shape.vocabulary, device=engine.pool.data.device)

    @property
    def nbytes(self) -> int:
        """Bytes on the device taken at the start, for logits."""
        return self._logits.nbytes

    def compute(self, step: StagedStep, sizes: StepSizes, *, fits: bool) -> tuple[GraphMode, list[object]]:
        """Queue a step; says how, and what must be kept until it is over. fits: it lies where graphs look for it.

        sizes: those of its graph. Raises MemoryError.
        """
        views, uses = step.views(), self._uses(step)
        self._stream.run(lambda: self._engine.plan(step.batch, sizes if fits else step.layout.sizes), uses)
        key = sizes, plain(step.layout.sizes)
        way = self.dispatcher.choose(key) if fits else GraphMode.EAGER
        kept: list[object] = []
        match way:
            case GraphMode.REPLAY:
                graph = self.dispatcher.graph(key)
            case GraphMode.CAPTURE:
                found = self._record(step, key)
                if found is None:
                    return self.compute(step, sizes, fits=False)
                graph = found
                kept += self.dispatcher.captured(key, graph)
            case GraphMode.EAGER:
                self._stream.run(lambda: self._compute(*views), uses)
                return way, kept
            case _:
                assert_never(way)
        self._stream.replay(graph)
        if not key[1] and sizes.samples:
            logits = self._logits[: sizes.samples]
            self._stream.run(lambda: self._engine.sample(views[0], logits, views[1]), uses)
        return way, [*kept, graph]

    def warm(self, step: StagedStep) -> bool:
        """Compute a step of padding and record its graph. Returns whether it could be recorded."""
        key = step.layout.sizes, True
        self.compute(step, key[0], fits=False)
        graph = self._record(step, key)
        if graph is not None:
            self.dispatcher.captured(key, graph)
        return graph is not None

    def _compute(self, step: StepInputs, out: StepOutputs) -> None:
        logits = self._engine.forward(step)
        if logits is not None:
            self._engine.sample(step, logits, out)

    def _forward(self, step: StepInputs) -> None:
        logits = self._engine.forward(step)
        if logits is not None:
            self._logits[: len(logits)].copy_(logits)

    def _record(self, step: StagedStep, key: Key) -> DeviceGraph | None:
        """Record the graph of a step's shape; None when that cannot be done."""
        sizes, samples = key
        layout = StepLayout(step.layout.shape, sizes, step.layout.tile_tokens)
        views, uses = StagedStep(step.batch, layout, step.step_in, step.step_out).views(), self._uses(step)
        try:
            return self._stream.capture(lambda: self._compute(*views) if samples else self._forward(views[0]), uses)
        except CaptureError as error:
            if self.dispatcher.refuse(key, str(error)):
                self.on_refused(f"{sizes.tokens} query tokens of {sizes.slices} sequences", str(error))
            return None

    def _uses(self, step: StagedStep) -> BufferUses:
        return BufferUses((step.step_in, *self._kept), (step.step_in, step.step_out, *self._kept))
