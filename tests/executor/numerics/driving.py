"""The real scheduler core and the real executor in one process, without sockets: every way of scheduling by settings."""

from collections import deque
from dataclasses import dataclass, field

import msgspec
import torch

from noria.proto.base import Ended, Stream, TokenLogprob
from noria.proto.execution import Geometry, StepDone
from noria.proto.output import TokenRun
from noria.proto.sampling import Sampling
from noria.proto.scheduling import Submission, Submit, Withdraw
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.kv_cache.layer_groups import cache_groups
from noria.services.executor.kv_cache.page_formats import CACHE_DTYPES
from noria.services.executor.model.causal_lm import CausalLM
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.executor.plan.limits import ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable
from noria.services.executor.runner.loaded_model import geometry_of
from noria.services.scheduler.core.interface.events import SchedulerEvent
from noria.services.scheduler.core.interface.settings import CoreSettings
from noria.services.scheduler.core.scheduler import Scheduler

STEPS_MAX = 5000


class Way(msgspec.Struct, frozen=True):
    """One way of scheduling. every: steps between arrivals, 0 for all at once, -1 for one after the other."""

    max_batch_tokens: int = 512
    steps_in_flight: int = 2
    num_blocks: int = 1024
    every: int = 0
    page_size: int = 16
    host_slots: int = 0
    cache_dtype: str = ""
    safety_margin: float | None = None


class Asked(msgspec.Struct, frozen=True):
    """One request. withdraw_at: the number of its output tokens after which it is cancelled."""

    prompt: tuple[int, ...]
    sampling: Sampling
    end_ids: tuple[int, ...] = ()
    withdraw_at: int | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """What came back; logits by output position, of the last time that it was computed."""

    ids: list[int] = field(default_factory=list)
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    likelihoods: list[TokenLogprob] = field(default_factory=list)
    ended: bool = False


class Watched(CpuEngine):
    """An engine that keeps the logits of each product."""

    seen: dict[tuple[Stream, int], torch.Tensor]

    def logits(self, batch: Batch, *, everywhere: bool = False) -> torch.Tensor | None:
        found = super().logits(batch, everywhere=everywhere)
        if found is not None:
            for product, row in zip(batch.sampled_rows, found, strict=True):
                self.seen[product.state.stream, product.start] = row.clone()
        return found


class Driver:
    """Runs requests to their ends."""

    def __init__(self, decoder: CausalLM, way: Way, max_model_tokens: int = 2048) -> None:
        self.way = way
        facts = decoder.architecture
        shape = ExecutorLimits(
            max_slots=32,
            max_batch_tokens=way.max_batch_tokens,
            max_model_tokens=max_model_tokens,
            page_size=way.page_size,
            num_chunks=way.num_blocks,
            vocabulary=facts.vocabulary,
            groups=cache_groups(facts.windows, max_model_tokens, way.max_batch_tokens, way.page_size),
            num_host_chunks=way.host_slots,
        )
        self.engine = Watched(decoder, shape, CACHE_DTYPES.get(way.cache_dtype))
        self.engine.seen = {}
        self.slots = SlotTable(shape)
        self.core = Scheduler(
            CoreSettings(
                max_batch_tokens=way.max_batch_tokens,
                max_requests_per_batch=32,
                steps_in_flight=way.steps_in_flight,
                safety_margin=way.safety_margin,
            )
        )
        self.now_ns = 0
        self._apply(geometry_of("m", shape, decoder.dtype, 1))

    def run(self, asked: list[Asked]) -> list[Answer]:
        """Submit as the way says, step until all have ended, and check that nothing is left."""
        self.answers = [Answer() for _ in asked]
        self.asked = asked
        flying: deque[Batch] = deque()
        submitted = step = 0
        while not all(answer.ended for answer in self.answers):
            assert step < STEPS_MAX, "no end in sight"
            while submitted < len(asked) and self._due(submitted, step):
                self._submit(submitted)
                submitted += 1
            while (plan := self.core.plan(self._tick())) is not None:
                flying.append(prepare(self.slots, plan))
            if flying:
                batch = flying.popleft()
                self._apply(StepDone(batch.epoch, batch.number, results(self.slots, batch, self.engine.run(batch))))
            self.core.check()
            step += 1
        while flying or (plan := self.core.plan(self._tick())) is not None:
            batch = flying.popleft() if flying else prepare(self.slots, plan)
            self._apply(StepDone(batch.epoch, batch.number, results(self.slots, batch, self.engine.run(batch))))
        assert self.slots.used() <= len(asked)
        for (stream, position), row in self.engine.seen.items():
            self.answers[stream.request].logits[position] = row
        return self.answers

    def _due(self, index: int, step: int) -> bool:
        if self.way.every < 0:
            return index == 0 or self.answers[index - 1].ended
        return step >= index * self.way.every

    def _submit(self, index: int) -> None:
        asked = self.asked[index]
        self._apply(Submit((Submission(Stream(index, 0), 0, asked.prompt, asked.sampling, asked.end_ids),)))

    def _tick(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def _apply(self, body: Submit | Geometry | StepDone | Ended | Withdraw) -> None:
        gone: list[Stream] = []
        for reply in self.core.apply(SchedulerEvent(self._tick(), body)):
            if not isinstance(reply, TokenRun):
                continue
            answer, asked = self.answers[reply.stream.request], self.asked[reply.stream.request]
            if answer.ended:
                continue
            assert reply.start == len(answer.ids)
            answer.ids.extend(reply.ids)
            answer.likelihoods.extend(reply.likelihoods)
            answer.ended = bool(reply.end)
            if asked.withdraw_at is not None and len(answer.ids) >= asked.withdraw_at and not answer.ended:
                answer.ended = True
                gone.append(reply.stream)
            elif answer.ended:
                self._apply(Ended((reply.stream,)))
        if gone:
            self._apply(Withdraw(tuple(gone)))
            self._apply(Ended(tuple(gone)))
