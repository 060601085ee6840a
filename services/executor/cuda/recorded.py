"""Computes steps by graphs where there are any, else operation by operation.

A graph is in two parts, the forward pass and the sampling: a step that samples in a way beyond the plain, with penalties or
log-probabilities, replays the first and computes the second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import torch

from noria.services.executor.batch import Batch
from noria.services.executor.cuda.engine import DeviceEngine
from noria.services.executor.cuda.graph_book import GraphBook, Way
from noria.services.executor.cuda.padding import plain
from noria.services.executor.cuda.streams import Buffer, CaptureError, Graph, Stream, Uses
from noria.services.executor.device.inputs import Inputs, inputs
from noria.services.executor.device.layout import Layout
from noria.services.executor.device.outputs import Outputs, outputs
from noria.services.executor.device.sizes import Sizes


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


@dataclass(slots=True, eq=False)
class _Recording:
    forward: Graph
    sample: Graph | None
    logits: torch.Tensor | None


class Recorded:
    """An engine on one stream. kept: the buffers that last, which every step reads and writes.

    told: is called once, with a shape and the reason why it cannot be recorded.
    """

    def __init__(self, engine: DeviceEngine, stream: Stream, kept: tuple[Buffer, ...], graphs_max: int) -> None:
        self.told: Callable[[str, str], None] = lambda shape, reason: None
        self._engine = engine
        self._stream = stream
        self._kept = kept
        self.book: GraphBook[_Recording] = GraphBook(graphs_max)

    def compute(self, step: Step, key: Sizes, *, fits: bool) -> tuple[Way, list[object]]:
        """Queue a step; says how, and what must be kept until it is over. fits: it lies where graphs look for it.

        key: the sizes of its graph. Raises MemoryError.
        """
        views, uses = step.views(), self._uses(step)
        self._stream.run(lambda: self._engine.plan(step.batch, key if fits else step.layout.sizes), uses)
        way = self.book.choose(key) if fits else Way.EAGER
        kept: list[object] = []
        match way:
            case Way.REPLAY:
                recording = self.book.graph(key)
            case Way.CAPTURE:
                found = self._record(step, key)
                if found is None:
                    return self.compute(step, key, fits=False)
                recording = found
                kept += self.book.captured(key, recording)
            case Way.EAGER:
                self._stream.run(lambda: self._plainly(*views), uses)
                return way, kept
            case _:
                assert_never(way)
        self._stream.replay(recording.forward)
        if recording.sample is not None and plain(step.layout.sizes):
            self._stream.replay(recording.sample)
        elif (logits := recording.logits) is not None:
            self._stream.run(lambda: self._engine.sample(views[0], logits, views[1]), uses)
        return way, [*kept, recording]

    def warm(self, step: Step) -> bool:
        """Compute a step that nobody asked for and record it; whether it could be."""
        self.compute(step, step.layout.sizes, fits=False)
        recording = self._record(step, step.layout.sizes)
        if recording is not None:
            self.book.captured(step.layout.sizes, recording)
        return recording is not None

    def _plainly(self, step: Inputs, out: Outputs) -> None:
        logits = self._engine.forward(step)
        if logits is not None:
            self._engine.sample(step, logits, out)

    def _record(self, step: Step, key: Sizes) -> _Recording | None:
        """Record the graph of a step's shape; None when that cannot be done."""
        layout = Layout(step.layout.shape, key, step.layout.tile_tokens)
        views, uses = Step(step.batch, layout, step.step_in, step.step_out).views(), self._uses(step)
        made: list[torch.Tensor | None] = []
        try:
            forward = self._stream.capture(lambda: made.append(self._engine.forward(views[0])), uses)
            logits = made[-1]
            sample = None
            if logits is not None:
                sample = self._stream.capture(lambda: self._engine.sample(views[0], logits, views[1]), uses)
        except CaptureError as error:
            if self.book.refuse(key, str(error)):
                self.told(f"{key.tokens} query tokens of {key.slices} sequences", str(error))
            return None
        return _Recording(forward, sample, logits)

    def _uses(self, step: Step) -> Uses:
        return Uses((step.step_in, *self._kept), (step.step_in, step.step_out, *self._kept))
