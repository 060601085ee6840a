"""Checks that a GPU computes the same as a CPU, and the same with graphs, two steps in flight and swaps."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu.bench import GpuBench
from gpu.driving import driven
from gpu.models import SMALL

from noria.proto.base import Stream
from noria.proto.execution import Copy, Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.batch import Batch, prepare
from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.cuda.choosing import choose_operations
from noria.services.executor.cuda.loading import load
from noria.services.executor.cuda.pipeline import Pipeline
from noria.services.executor.decoder import Decoder
from noria.services.executor.device.inputs import host_buffer, inputs
from noria.services.executor.device.layout import Layout
from noria.services.executor.device.sizes import needed
from noria.services.executor.engine import Engine
from noria.services.executor.families import architecture
from noria.services.executor.loaded import Loaded
from noria.services.executor.shape import Shape
from noria.services.executor.slots import Slots
from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError
from noria.shared.model.model_folder import resolve


def asked(count: int, vocabulary: int, seed: int = 0) -> list[tuple[tuple[int, ...], Sampling]]:
    """Return requests of mixed lengths: greedy ones, and some that sample with a seed."""
    chance = random.Random(seed)
    return [
        (
            tuple(chance.randrange(3, vocabulary) for _ in range(chance.randrange(2, 100))),
            Sampling(temperature=float(number % 3 == 2), seed=number, max_tokens=24, ignore_eos=True),
        )
        for number in range(count)
    ]


def tokens(pipeline: Pipeline, loaded: Loaded, requests: Sequence[Any], in_flight: int = 2) -> list[list[int]]:
    """Return the tokens of each request, computed by a pipeline."""
    drive = driven(pipeline, loaded, in_flight)
    found = drive.run(drive.load(), list(requests))
    drive.close()
    return found


def prompts_batch(shape: Shape, lengths: Sequence[int]) -> Batch:
    """Return one step of whole prompts, each sampled."""
    chance = np.random.default_rng(3)
    pages = -(-max(lengths) // shape.page_size)
    fills, slices = [], []
    for slot, length in enumerate(lengths):
        blocks = tuple(
            tuple(
                (2 + (number * len(lengths) + slot) * pages + page) * group.blocks_per_chunk
                for page in range(min(pages, group.ring_pages or pages))
            )
            for number, group in enumerate(shape.groups)
        )
        ids = tuple(chance.integers(3, shape.vocabulary, length).tolist())
        fills.append(Fill(slot, Stream(slot, 0), 0, ids, (), Sampling(temperature=0.0), (), blocks))
        slices.append(Slice(slot, 0, length, False, True))
    return prepare(Slots(shape), StepPlan(1, 1, tuple(slices), fill=tuple(fills)))


def device_logits(pipeline: Pipeline, batch: Batch) -> torch.Tensor:
    """Return the logits of a step's sampled rows, computed without graphs."""
    engine = pipeline.engine
    layout = Layout(engine.shape, needed(batch, engine.operations.tile_tokens), engine.operations.tile_tokens)
    host = host_buffer(layout)
    layout.fill(host.numpy(), batch)
    step = inputs(layout, host.to(engine.pool.data.device))
    engine.plan(batch, layout.sizes)
    logits = engine.forward(step)
    assert logits is not None
    return logits.float().cpu()


def numerics(bench: GpuBench, name: str, folder: Path) -> None:
    """A step of prompts of several lengths by the device and by the processor's reference, in float32 and bfloat16."""
    for dtype, allowed in (("float32", 1e-3), ("bfloat16", 0.08)):
        if bench.dry and dtype != bench.dtype:
            continue
        goal = f"root mean square error at most {allowed:g} of the logits' spread"
        with bench.checking(f"numerics: {name}, {dtype}", goal) as found:
            pipeline, loaded = load(bench.config(str(folder), dtype=dtype), bench.device(), choose_operations)
            batch = prompts_batch(loaded.shape, (1, 2, 17, 40, 60))
            facts, shape = architecture(folder), loaded.shape
            plain = Decoder(facts, Checkpoint(folder), torch.float32, shape.max_batch_tokens, shape.max_slots)
            want = Engine(plain, shape).logits(batch)
            assert want is not None
            error = (device_logits(pipeline, batch) - want).square().mean().sqrt() / want.std()
            found |= {"error": float(error), "kernels": loaded.kernels, "passed": bool(error <= allowed)}


def equalities(bench: GpuBench, folder: Path) -> None:
    """Graph replay and plain computing, two steps in flight and one: the same tokens."""
    requests = asked(12, SMALL["vocab_size"])  # type: ignore[arg-type]
    with bench.checking("replay equals plain computing", "the same tokens") as found:
        recorded = load(bench.config(str(folder)), bench.device(), choose_operations)
        eager = load(bench.config(str(folder), graphs_max=0), bench.device(), choose_operations)
        one, other = tokens(*recorded, requests), tokens(*eager, requests)
        again = tokens(*recorded, requests)  # by now every shape has its graph
        found["graphs"] = len(recorded[0].recorded.book)
        found["passed"] = one == other == again and len(recorded[0].recorded.book) > 0
    with bench.checking("two steps in flight equal one", "the same tokens") as found:
        pipeline = load(bench.config(str(folder)), bench.device(), choose_operations)
        alone = tokens(*pipeline, requests, in_flight=1)
        found["passed"] = tokens(*pipeline, requests, in_flight=2) == alone


def swaps(bench: GpuBench, folder: Path) -> None:
    """What goes to the host comes back with its bytes, into other blocks, while steps compute."""
    with bench.checking("swap round trip", "the same bytes") as found:
        settings = bench.config(str(folder), host_gib=0.25)
        pipeline, loaded = load(settings, bench.device(), choose_operations)
        shape, pool = loaded.shape, pipeline.engine.pool
        count = min(40, (shape.num_blocks - 4) // 2)
        kinds = [(group, each.blocks_per_chunk) for group, each in enumerate(shape.groups)]
        blocks = [(group, 2 * tiles + number) for group, tiles in kinds for number in range(count)]
        targets = [(group, block + count) for group, block in blocks]
        rows, to_rows = (torch.from_numpy(pool.rows(each)).to(pool.data.device) for each in (blocks, targets))
        noise = torch.randint(0, 255, (len(rows), pool.page_bytes), dtype=torch.uint8).to(pool.data.device)
        pool.pages[rows] = noise
        if not bench.dry:
            torch.cuda.synchronize()
        host = [Copy(group, block, number) for number, (group, block) in enumerate(blocks)]
        slots = Slots(shape)
        out = prepare(slots, StepPlan(1, 1, (), swap_out=tuple(host)))
        back = [Copy(each.group, each.target, target) for each, (_, target) in zip(host, targets, strict=True)]
        into = prepare(slots, StepPlan(1, 2, (), swap_in=tuple(back)))
        began_s = time.monotonic()
        flights = [pipeline.launch(out), pipeline.launch(into)]
        for flight in flights:
            pipeline.finish(flight)
        seconds = time.monotonic() - began_s
        found |= {"bytes": noise.nbytes, "gib_per_s": 2 * noise.nbytes / seconds / 2**30}
        found["passed"] = torch.equal(pool.pages[to_rows], noise)


def real_model(bench: GpuBench) -> None:
    """The greedy tokens of a real model, by the device and by the processor, in float32."""
    with bench.checking(f"tokens of {bench.model}", "equal until two ids are as likely") as found:
        try:
            folder = resolve(ModelSettings(name=bench.model))
        except UserError as error:
            found["skipped"] = str(error)[:200]
            return
        pipeline, loaded = load(bench.config(bench.model, dtype="float32"), bench.device(), choose_operations)
        batch = prompts_batch(loaded.shape, (5, 33, 80))
        facts, shape = architecture(folder), loaded.shape
        plain = Decoder(facts, Checkpoint(folder), torch.float32, shape.max_batch_tokens, shape.max_slots)
        want = Engine(plain, shape).logits(batch)
        assert want is not None
        found["error"] = float((device_logits(pipeline, batch) - want).square().mean().sqrt() / want.std())
        found["passed"] = bool(found["error"] <= 1e-3)
