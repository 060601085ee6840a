"""Computes steps by graphs where there are any, else operation by operation.

A graph of a step that samples plainly is all of it. A step that samples in a way beyond that, with penalties or
log-probabilities, has a graph of its forward pass alone, and computes the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import torch

from noria.services.executor.cuda.device.step_inputs import Inputs, inputs
from noria.services.executor.cuda.device.step_outputs import Outputs, outputs
from noria.services.executor.cuda.device.streams import Buffer, CaptureError, Graph, Stream, Uses
from noria.services.executor.cuda.engine import DeviceEngine
from noria.services.executor.cuda.layout.graph_dispatcher import GraphBook, Way
from noria.services.executor.cuda.layout.padding import plain
from noria.services.executor.cuda.layout.step_layout import Layout
from noria.services.executor.cuda.layout.step_sizes import Sizes
from noria.services.executor.plan.batch import Batch


@dataclass(slots=True, frozen=True)
class Step:
    """A step as it lies on the device."""

    batch: Batch
    layout: Layout
    step_in: Buffer
    step_out: Buffer

    def views(self) -> tuple[Inputs, Outputs]:
        """Its arrays."""
        return inputs(self.layout, self.step_in.data), outputs(self.layout.sizes, self.step_out.data)


Key = tuple[Sizes, bool]
"""What a graph is found by: padded sizes, and whether it samples."""


class Recorded:
    """An engine on one stream. kept: the buffers that last, which every step reads and writes. samples_max: sampled rows.

    told: is called once, with a shape and the reason why it cannot be recorded.
    """

    def __init__(
        self, engine: DeviceEngine, stream: Stream, kept: tuple[Buffer, ...], graphs_max: int, samples_max: int
    ) -> None:
        self.told: Callable[[str, str], None] = lambda shape, reason: None
        self.book: GraphBook[Key, Graph] = GraphBook(graphs_max)
        self._engine = engine
        self._stream = stream
        self._kept = kept
        # Where graphs that do not sample leave their logits: one place for all, because a place of its own in each would
        # take the memory of the largest step again and again.
        rows = samples_max if graphs_max else 0
        self._logits = torch.zeros(rows, engine.shape.vocabulary, device=engine.pool.data.device)

    @property
    def nbytes(self) -> int:
        """Bytes on the device that are taken from the start."""
        return self._logits.nbytes

    def compute(self, step: Step, sizes: Sizes, *, fits: bool) -> tuple[Way, list[object]]:
        """Queue a step; says how, and what must be kept until it is over. fits: it lies where graphs look for it.

        sizes: those of its graph. Raises MemoryError.
        """
        views, uses = step.views(), self._uses(step)
        self._stream.run(lambda: self._engine.plan(step.batch, sizes if fits else step.layout.sizes), uses)
        key = sizes, plain(step.layout.sizes)
        way = self.book.choose(key) if fits else Way.EAGER
        kept: list[object] = []
        match way:
            case Way.REPLAY:
                graph = self.book.graph(key)
            case Way.CAPTURE:
                found = self._record(step, key)
                if found is None:
                    return self.compute(step, sizes, fits=False)
                graph = found
                kept += self.book.captured(key, graph)
            case Way.EAGER:
                self._stream.run(lambda: self._compute(*views), uses)
                return way, kept
            case _:
                assert_never(way)
        self._stream.replay(graph)
        if not key[1] and sizes.samples:
            logits = self._logits[: sizes.samples]
            self._stream.run(lambda: self._engine.sample(views[0], logits, views[1]), uses)
        return way, [*kept, graph]

    def warm(self, step: Step) -> bool:
        """Compute a step that nobody asked for and record it; whether it could be."""
        key = step.layout.sizes, True
        self.compute(step, key[0], fits=False)
        graph = self._record(step, key)
        if graph is not None:
            self.book.captured(key, graph)
        return graph is not None

    def _compute(self, step: Inputs, out: Outputs) -> None:
        logits = self._engine.forward(step)
        if logits is not None:
            self._engine.sample(step, logits, out)

    def _forward(self, step: Inputs) -> None:
        logits = self._engine.forward(step)
        if logits is not None:
            self._logits[: len(logits)].copy_(logits)

    def _record(self, step: Step, key: Key) -> Graph | None:
        """Record the graph of a step's shape; None when that cannot be done."""
        sizes, samples = key
        layout = Layout(step.layout.shape, sizes, step.layout.tile_tokens)
        views, uses = Step(step.batch, layout, step.step_in, step.step_out).views(), self._uses(step)
        try:
            return self._stream.capture(lambda: self._compute(*views) if samples else self._forward(views[0]), uses)
        except CaptureError as error:
            if self.book.refuse(key, str(error)):
                self.told(f"{sizes.tokens} query tokens of {sizes.slices} sequences", str(error))
            return None

    def _uses(self, step: Step) -> Uses:
        return Uses((step.step_in, *self._kept), (step.step_in, step.step_out, *self._kept))
