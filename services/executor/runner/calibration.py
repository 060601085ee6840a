"""Measures on the loaded model how many prompt tokens a step should have.

Few tokens a step leave the processor's multipliers idle, many make everybody who decodes wait. So a step without decodes
gets the fewest tokens at which a token costs nearly as little as it can; a step with many decodes as many as make it take
`STRETCH_MAX` times as long as the decodes alone. The fewer decode, the fewer wait for a longer step: beside a few, a prompt
may take `FEW_STRETCH_MAX` times as long as the many do. The answer is kept in the model's folder; measuring takes at most about
`SECONDS_MAX`. The sequences measured are made up, and lie in a cache that holds nothing yet.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.kv_cache.memory_plan import request_pages
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.plan.sampling_metadata import SamplerOutput
from noria.services.executor.plan.slot_table import SlotTable

SECONDS_MAX: Final = 1.5
STRETCH_MAX: Final = 3.0
FEW_STRETCH_MAX: Final = 4.0
EFFICIENCY_MIN: Final = 0.95
ROUNDS_MAX: Final = 5
AGREEMENT_MAX: Final = 1.15
_VERSION: Final = 3
DECODES: Final = 32
_CONTEXT: Final = 256
_PROMPTS: Final = (64, 128, 256)
_CHUNK: Final = 16
_PROCESSOR: Final = Path("/proc/cpuinfo")


class StepTimeProfile(msgspec.Struct, frozen=True):
    """Step times measured at the load, in microseconds: of a step of many decodes, and of steps by their prompt tokens, ascending."""

    decodes_us: float
    prompts: tuple[tuple[int, float], ...]

    def advice(self) -> "PrefillAdvice":
        """The advice that follows from these times."""
        rates = [(tokens, tokens / us) for tokens, us in self.prompts]
        best = max(rate for _, rate in rates)
        alone = next(tokens for tokens, rate in rates if rate >= EFFICIENCY_MIN * best)
        (first, first_us), (last, last_us) = self.prompts[0], self.prompts[-1]
        token_us = max(last_us - first_us, 1.0) / (last - first)

        def stretched(times: float) -> int:
            return min(max(int(times * self.decodes_us / token_us) // _CHUNK * _CHUNK, first), last)

        return PrefillAdvice(alone, stretched(STRETCH_MAX - 1), stretched(FEW_STRETCH_MAX))


class StepMeasurements(msgspec.Struct, frozen=True):
    """The two least times that each step took so far, in microseconds: many decodes, then each number of prompt tokens.

    What else runs here makes no step shorter, so the least counts, once two agree on it. A start among other processes may
    not come to that; what it found is kept for the next.
    """

    prompts: tuple[int, ...]
    least_us: tuple[tuple[float, ...], ...]

    def pace(self) -> StepTimeProfile | None:
        """The pace by the least times; None while no two results of a step agree."""
        if not all(len(each) > 1 and each[1] <= AGREEMENT_MAX * each[0] for each in self.least_us):
            return None
        decodes, *prompts = (each[0] for each in self.least_us)
        return StepTimeProfile(decodes, tuple(zip(self.prompts, prompts, strict=True)))


class PrefillAdvice(msgspec.Struct, frozen=True):
    """Prompt tokens for a step without decodes, beside `DECODES` decodes, and beside a few.

    The defaults are for machines too busy to be measured. As both kinds of steps take the longer the slower a machine
    is, they are not far off anywhere.
    """

    alone: int = 256
    beside: int = 112
    few: int = 192


class MeasuredEngine(Protocol):
    """An engine whose steps are measured."""

    shape: ExecutorLimits

    def run(self, batch: Batch) -> SamplerOutput | None:
        """Compute a batch."""


def calibrated(
    runner: MeasuredEngine, path: Path | None, key: str, clock_s: Callable[[], float] = time.monotonic
) -> PrefillAdvice:
    """The advice by what earlier starts measured for this key, else by a new measurement, which is kept at `path`."""
    known = _read(path, key) if path is not None else None
    if known is not None and (pace := known.pace()) is not None:
        return pace.advice()
    measured = measure(runner, clock_s, known)
    if path is not None and measured is not None:
        _write(path, key, measured)
    pace = measured.pace() if measured is not None else None
    if pace is None:
        most = min(runner.shape.max_batch_tokens, runner.shape.max_model_tokens)
        return PrefillAdvice(
            *(min(tokens, most) for tokens in (PrefillAdvice().alone, PrefillAdvice().beside, PrefillAdvice().few))
        )
    return pace.advice()


def calibration_key(config_json: bytes, shape: ExecutorLimits, *ways: str) -> str:
    """What a pace depends on: the model, the step's shape, the processor and the named ways to compute."""
    processor = next((line for line in _lines(_PROCESSOR) if line.startswith("model name")), "")
    found = hashlib.sha256(config_json)
    sizes = (_VERSION, shape.max_slots, shape.max_batch_tokens, shape.max_model_tokens, shape.page_size)
    found.update(repr((sizes, processor, ways)).encode())
    return found.hexdigest()


def decodes_measured(shape: ExecutorLimits) -> int:
    """How many decodes the step has that stands for many: `DECODES`, or as many as fit."""
    return min(DECODES, shape.max_slots, shape.max_batch_tokens)


def measure(
    runner: MeasuredEngine, clock_s: Callable[[], float], known: StepMeasurements | None = None
) -> StepMeasurements | None:
    """Measure steps in rounds for about `SECONDS_MAX`, and add the `known` times. None when the cache cannot hold the steps."""
    shape, slots = runner.shape, SlotTable(runner.shape)
    context = min(_CONTEXT, shape.max_model_tokens - 1)
    steps = [(decodes_measured(shape), context, 1)]
    fitting = min(shape.max_batch_tokens, shape.max_model_tokens)
    steps += [(1, tokens, tokens) for tokens in _PROMPTS if tokens <= fitting and _fits(shape, tokens)]
    if len(steps) < 3 or not _fits(shape, context):
        return None
    prompts = tuple(tokens for _, tokens, _ in steps[1:])
    taken: list[list[float]] = [[] for _ in steps]
    ends_s = clock_s() + SECONDS_MAX
    for epoch in range((ROUNDS_MAX + 1) * len(steps)):
        turn = epoch % len(steps)
        if epoch and clock_s() + min(taken[turn], default=0.0) > ends_s:
            break
        batch = prepare(slots, _plan(shape, epoch + 1, *steps[turn]))
        began_s = clock_s()
        runner.run(batch)
        if epoch >= len(steps):  # the first round touches memory that none after it does
            taken[turn].append(clock_s() - began_s)
    earlier = known.least_us if known is not None and known.prompts == prompts else ((),) * len(steps)
    now_us = [[1e6 * each_s for each_s in each] for each in taken]
    return StepMeasurements(
        prompts, tuple(tuple(sorted((*old, *new))[:2]) for old, new in zip(earlier, now_us, strict=True))
    )


def _fits(shape: ExecutorLimits, tokens: int) -> bool:
    """Whether the cache holds a sequence of so many tokens."""
    chunks = shape.num_chunks - RESERVED_CHUNKS
    pages = request_pages(shape, tokens)
    return all(count <= chunks * group.blocks_per_chunk for count, group in zip(pages, shape.groups, strict=True))


def _plan(shape: ExecutorLimits, epoch: int, fills: int, tokens: int, length: int) -> StepPlan:
    """A step that opens an epoch of its own, in which each sequence computes the last `length` of its `tokens`.

    All lie in the same blocks, the pool's first: nobody looks at what is computed, and memory that was never touched is
    dear; in blocks of their own, 32 sequences took 240 MB more of it.
    """
    ids = np.random.default_rng(epoch).integers(0, shape.vocabulary, (fills, tokens))
    firsts = [RESERVED_CHUNKS * group.blocks_per_chunk for group in shape.groups]
    counts = request_pages(shape, tokens)
    blocks = tuple(tuple(range(first, first + count)) for first, count in zip(firsts, counts, strict=True))
    sampling = Sampling(temperature=0.0, max_tokens=1)
    return StepPlan(
        epoch=epoch,
        number=1,
        slices=tuple(Slice(slot, tokens - length, length, False, length == 1) for slot in range(fills)),
        fill=tuple(
            Fill(slot, Stream(slot, 0), 0, tuple(ids[slot].tolist()), (), sampling, (), blocks) for slot in range(fills)
        ),
    )


class _KeptMeasurements(msgspec.Struct, frozen=True):
    key: str
    measured: StepMeasurements


def _read(path: Path, key: str) -> StepMeasurements | None:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_KeptMeasurements)
    except (OSError, msgspec.DecodeError):
        return None
    measured = kept.measured
    return measured if kept.key == key and len(measured.least_us) == len(measured.prompts) + 1 > 2 else None


def _write(path: Path, key: str, measured: StepMeasurements) -> None:
    """Keep measurements in a file; a folder that cannot be written only costs the next start its time."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        written.write_bytes(
            msgspec.json.format(msgspec.json.encode(_KeptMeasurements(key, measured)), indent=1) + b"\n"
        )
        written.replace(path)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
