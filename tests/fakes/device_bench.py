"""The scheduler's core in front of a device's pipeline, or of a processor's engine: the same requests through both."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fakes.device import FakeDevice
from fakes.plain_operations import PlainOperations

from noria.proto.base import Ended, Stream
from noria.proto.execution import StepDone
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.cuda.device.block_copies import STAGING_BYTES
from noria.services.executor.cuda.device.cache_pool import DeviceCachePool
from noria.services.executor.cuda.engine import DeviceModelExecutor
from noria.services.executor.cuda.layers.linear import DeviceLinearFactory
from noria.services.executor.cuda.layout.padding import Padding
from noria.services.executor.cuda.pipeline import Pipeline, StepFlight
from noria.services.executor.kv_cache.layer_groups import cache_groups, layer_groups
from noria.services.executor.kv_cache.page_formats import page_bytes
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable
from noria.services.executor.runner.loaded_model import geometry_of
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler

Asked = tuple[tuple[int, ...], Sampling]


def shape_of(folder: Path, *, num_blocks: int = 64, host_slots: int = 0, page_size: int = 4) -> ExecutorLimits:
    facts = architecture(folder)
    return ExecutorLimits(
        max_slots=6,
        max_batch_tokens=48,
        max_model_tokens=160,
        page_size=page_size,
        num_chunks=num_blocks,
        vocabulary=facts.vocabulary,
        groups=cache_groups(facts.windows, 160, 48, page_size),
        num_host_chunks=host_slots,
    )


class Watched(CpuEngine):
    """Keeps how far the likeliest id was ahead of the next, by request and output position."""

    margins: dict[tuple[int, int], float]

    def logits(self, batch: Batch, *, everywhere: bool = False) -> torch.Tensor | None:
        found = super().logits(batch, everywhere=everywhere)
        if found is not None:
            best = found.topk(2, -1).values
            for product, margin in zip(batch.sampled_rows, (best[:, 0] - best[:, 1]).tolist(), strict=True):
                self.margins[product.state.stream.request, product.start] = margin
        return found

    def agrees(self, answers: list[list[int]], want: list[list[int]]) -> bool:
        """Whether they are the same up to where two ids were as likely."""
        for request, (mine, other) in enumerate(zip(answers, want, strict=True)):
            ties = [at for at in range(len(other)) if self.margins[request, at] < 1e-4]
            end = min(ties, default=len(other))
            if mine[:end] != other[:end] or len(mine) != len(other):
                return False
        return True


def reference(folder: Path, shape: ExecutorLimits) -> Watched:
    """The processor's engine."""
    decoder = Decoder(architecture(folder), Checkpoint(folder), torch.float32, shape.max_batch_tokens, shape.max_slots)
    engine = Watched(decoder, shape)
    engine.margins = {}
    return engine


def pipeline(
    folder: Path,
    shape: ExecutorLimits,
    device: FakeDevice,
    *,
    graphs_max: int = 16,
    staging_bytes: int = STAGING_BYTES,
) -> Pipeline:
    """A model in plain PyTorch on a device."""
    facts, dtype, where = architecture(folder), torch.float32, device.torch_device
    linear_factory = DeviceLinearFactory(dtype, where)
    decoder = Decoder(
        facts, Checkpoint(folder), dtype, shape.max_batch_tokens, shape.max_slots, linear_factory, device=where
    )
    pool = DeviceCachePool(shape, page_bytes(facts, shape.page_size, dtype), where)
    places = layer_groups(facts.windows, shape.max_model_tokens)
    operations = PlainOperations(facts, pool, places, dtype, dtype)
    return Pipeline(
        device,
        DeviceModelExecutor(decoder, shape, pool, operations),
        Padding(8, 32),
        graphs_max,
        staging_bytes=staging_bytes,
    )


@dataclass(eq=False)
class Drive:
    """Runs requests to their ends, with `in_flight` steps under way; interleave: called between any two things."""

    shape: ExecutorLimits
    in_flight: int = 2
    safety_margin: float | None = None
    interleave: Callable[[], bool] = lambda: False
    answers: dict[int, list[int]] = field(default_factory=dict)
    ways: list[str] = field(default_factory=list)
    swapped: int = 0

    def run(self, on: Pipeline | CpuEngine, asked: list[Asked], gap: int = 0) -> list[list[int]]:
        """gap: steps between two arrivals."""
        self.slots = SlotTable(self.shape)
        self.core = Scheduler(
            CoreSettings(
                max_batch_tokens=self.shape.max_batch_tokens,
                max_requests_per_batch=self.shape.max_slots,
                steps_in_flight=self.in_flight,
                safety_margin=self.safety_margin,
            )
        )
        self._now = 0
        self._apply(geometry_of("m", self.shape, torch.float32, 1))
        self.answers = {number: [] for number in range(len(asked))}
        self.open = set(self.answers)
        flying: deque[tuple[Batch, StepFlight | None]] = deque()
        submitted = steps = 0
        while self.open:
            assert steps < 3000
            while submitted < len(asked) and steps >= gap * submitted:
                prompt, sampling = asked[submitted]
                self._apply(Submit((Submission(Stream(submitted, 0), 0, prompt, sampling, ()),)))
                submitted += 1
            while len(flying) < self.in_flight and (plan := self.core.plan(self._tick())) is not None:
                self.swapped += len(plan.swap_out)
                batch = prepare(self.slots, plan)
                flying.append((batch, on.launch(batch) if isinstance(on, Pipeline) else None))
                if self.interleave():
                    break
            if flying:
                self._finish(on, *flying.popleft())
            steps += 1
        while flying:
            self._finish(on, *flying.popleft())
        return list(self.answers.values())

    def _finish(self, on: Pipeline | CpuEngine, batch: Batch, flight: StepFlight | None) -> None:
        if isinstance(on, Pipeline):
            assert flight is not None
            finished = on.finish(flight)
            drawn = finished.drawn
            self.ways.append(finished.way.value if finished.way else "")
        else:
            drawn = on.run(batch)
        self._apply(StepDone(batch.epoch, batch.number, results(self.slots, batch, drawn)))

    def _tick(self) -> int:
        self._now += 1_000_000
        return self._now

    def _apply(self, body: object) -> None:
        for reply in self.core.apply(SchedulerEvent(self._tick(), body)):  # type: ignore[arg-type]
            if isinstance(reply, TokenRun):
                self.answers[reply.stream.request].extend(reply.ids)
                if reply.end:
                    self.open.discard(reply.stream.request)
                    self._apply(Ended((reply.stream,)))
