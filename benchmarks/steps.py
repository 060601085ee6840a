"""What a step costs: `python benchmarks/steps.py [OPTIONS]`, see --help.

Drives the executor's engine directly, without sockets: decode steps of so many sequences at contexts of so many tokens,
and prefill steps, by the native kernels and by plain PyTorch in the same run. Beside each stands what the machine allows:
the time of its multiplications at the measured peak, or of its bytes at the measured bandwidth, whichever is longer.
Writes steps.json, and steps.png where matplotlib is installed.
"""

import argparse
import ctypes
import statistics
import time
from pathlib import Path

import msgspec
import torch
from products import bandwidth

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.config import executor_config
from noria.services.executor.cpu.backend import choose_backend
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.cpu.loading import pick_dtype
from noria.services.executor.kv_cache.layer_groups import cache_groups
from noria.services.executor.kv_cache.page_formats import CACHE_DTYPES, page_bytes
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.plan.batch_builder import prepare
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable
from noria.services.executor.runner.machine import cores
from noria.shared.config.sources import load
from noria.shared.model.model_folder import resolve_model_folder

PREFILL_MAX = 512


class StepTiming(msgspec.Struct, frozen=True):
    """The time of one kind of step. kernels: those used. bound_ms: the roofline; spread_ms: interquartile range of the times."""

    kernels: str
    sequences: int
    context: int
    tokens: int
    step_ms: float
    spread_ms: float
    prepare_ms: float
    bound_ms: float


class MachinePeaks(msgspec.Struct, frozen=True):
    """Measured peaks of the machine: multiply-add operations and bytes read, per second."""

    threads: int
    flops: float
    bytes_per_s: float


class StepReport(msgspec.Struct, frozen=True):
    """The result of the whole benchmark."""

    model: str
    dtype: str
    quantization: str
    cache: str
    machine: MachinePeaks
    steps: list[StepTiming]


class StepBench:
    """One engine, and plans to drive it with."""

    def __init__(self, options: argparse.Namespace, kernels: str) -> None:
        folder = resolve_model_folder(
            load(None).model if not options.model else msgspec.structs.replace(load(None).model, name=options.model)
        )
        family = architecture(folder)
        dtype = pick_dtype(options.dtype)
        self.cache_dtype = CACHE_DTYPES[options.cache] if options.cache else dtype
        self.quantization = "none" if kernels == "reference" else options.quantization
        computing = choose_backend(kernels, self.quantization)
        config = msgspec.structs.replace(executor_config(load(None)), quantization=self.quantization, keep_packed=False)
        linear_factory, packed = computing.linear_factory(config, folder, dtype, options.threads)
        most = max(options.sequences)
        self.decoder = Decoder(family, Checkpoint(folder), dtype, max(PREFILL_MAX, most), most, linear_factory, packed)
        self.context_max = max(*options.contexts, PREFILL_MAX) + 64
        groups = cache_groups(family.windows, self.context_max, max(PREFILL_MAX, most), options.page_size)
        shape = ExecutorLimits(
            most, max(PREFILL_MAX, most), self.context_max, options.page_size, 0, family.vocabulary, groups
        )
        chunk = 2 * shape.pool_chunk_pages * page_bytes(family, shape.page_size, self.cache_dtype)
        chunks = int(options.cache_gib * 2**30) // chunk
        self.shape = msgspec.structs.replace(shape, num_chunks=chunks)
        self.engine = CpuEngine(self.decoder, self.shape, self.cache_dtype)
        for layer in range(family.layers):  # a page that was never written costs nothing to read
            for address in self.engine.cache.addresses(layer):
                ctypes.memset(address, 1, chunks * self.engine.cache.page_bytes)
        self.name = kernels if computing.kernels is None else computing.name

    def decode(self, sequences: int, context: int, repeats: int) -> tuple[list[float], list[float]] | None:
        """Return milliseconds of decode steps and of their preparation; None when the cache is too small."""
        fills = self._fills(sequences, context)
        if fills is None:
            return None
        slots, times, prepared = SlotTable(self.shape), [], []
        for number in range(1, repeats + 2):
            # The same token again and again: its place is written anew, and nothing has to be known.
            slices = tuple(Slice(slot, context - 1, 1, False, False) for slot in range(sequences))
            began = time.perf_counter()
            batch = prepare(slots, StepPlan(1, number, slices, fill=fills if number == 1 else ()))
            middle = time.perf_counter()
            rows = batch.slices.rows
            self.engine.logits_of(batch, rows)
            times.append(1e3 * (time.perf_counter() - middle))
            prepared.append(1e3 * (middle - began))
        return times[1:], prepared[1:]

    def prefill(self, tokens: int, repeats: int) -> tuple[list[float], list[float]] | None:
        """Return milliseconds of prefill steps of one prompt, and of their preparation; None when the cache is too small."""
        fills = self._fills(1, tokens)
        if fills is None:
            return None
        slots, times, prepared = SlotTable(self.shape), [], []
        for number in range(1, repeats + 2):
            began = time.perf_counter()
            plan = StepPlan(1, number, (Slice(0, 0, tokens, False, False),), fill=fills if number == 1 else ())
            batch = prepare(slots, plan)
            middle = time.perf_counter()
            self.engine.logits_of(batch, batch.slices.rows + tokens - 1)
            times.append(1e3 * (time.perf_counter() - middle))
            prepared.append(1e3 * (middle - began))
        return times[1:], prepared[1:]

    def bound_ms(self, machine: MachinePeaks, tokens: int, sampled: int, keys: int) -> float:
        """Return the roofline in milliseconds. keys: all (token, key) pairs of a layer with full attention."""
        facts = self.decoder.architecture
        head = facts.vocabulary * facts.hidden
        inner = (
            facts.hidden * (facts.heads + 2 * facts.kv_heads) * facts.head_dim
            + facts.heads * facts.head_dim * facts.hidden
        )
        weights = facts.layers * (inner + 3 * facts.hidden * facts.intermediate)
        scored = 4 * keys * facts.heads * facts.head_dim * facts.layers
        flops = 2 * (tokens * weights + sampled * head) + scored
        item = 1 if self.quantization == "int8" else self.decoder.dtype.itemsize
        read = keys if tokens == sampled else 0  # a prompt's own keys are in the processor's caches
        cached = 2 * read * facts.layers * page_bytes(facts, 1, self.cache_dtype)
        return 1e3 * max(flops / machine.flops, ((weights + head) * item + cached) / machine.bytes_per_s)

    def _fills(self, sequences: int, context: int) -> tuple[Fill, ...] | None:
        pages = -(-context // self.shape.page_size)
        taken, tables = RESERVED_CHUNKS, []
        for group in self.shape.groups:
            count = min(pages, group.ring_pages) if group.ring_pages else pages
            tables.append((taken * group.blocks_per_chunk, count))
            taken += -(-count * sequences // group.blocks_per_chunk)
        if taken > self.shape.num_chunks:
            return None
        ids = tuple(i % self.shape.vocabulary for i in range(context))
        return tuple(
            Fill(
                slot,
                Stream(slot, 0),
                0,
                ids,
                (),
                Sampling(temperature=0.0),
                (),
                tuple(tuple(range(first + slot * count, first + (slot + 1) * count)) for first, count in tables),
            )
            for slot in range(sequences)
        )


def measured(dtype: torch.dtype, threads: int) -> MachinePeaks:
    """Measure the peak of oneDNN's matrix products in a dtype, and of reading memory."""
    size, times = 2048, []
    a, b = torch.randn(2, size, size).to(dtype)
    for _ in range(8):
        began = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - began)
    return MachinePeaks(threads, 2 * size**3 / min(times), 1e9 * bandwidth(threads))


def steps(options: argparse.Namespace) -> StepReport:
    """Run all kinds of steps; for each, the kinds of kernels take turns."""
    torch.set_num_threads(options.threads)
    benches = [StepBench(options, kernels) for kernels in options.kernels]
    dtype = benches[0].decoder.dtype
    machine = measured(dtype, options.threads)
    found: list[StepTiming] = []

    def note(
        bench: StepBench,
        sequences: int,
        context: int,
        tokens: int,
        keys: int,
        times: tuple[list[float], list[float]] | None,
    ) -> None:
        if times is None:
            return
        quarters = statistics.quantiles(times[0], n=4) if len(times[0]) > 1 else [times[0][0]] * 3
        bound = bench.bound_ms(machine, tokens, sequences, keys)
        timed = StepTiming(
            bench.name,
            sequences,
            context,
            tokens,
            quarters[1],
            quarters[2] - quarters[0],
            statistics.median(times[1]),
            bound,
        )
        found.append(timed)
        print(
            f"{timed.kernels:>12} {sequences:4} x {context:5}, {tokens:4} tokens: {timed.step_ms:8.2f} ms ± {timed.spread_ms:.2f}"
            f"   bound {bound:7.2f} ms   prepared in {timed.prepare_ms:.2f} ms   {tokens / timed.step_ms * 1e3:7.0f} tok/s",
            flush=True,
        )

    for context in options.contexts:
        for sequences in options.sequences:
            for bench in benches:
                keys = sequences * context
                note(bench, sequences, context, sequences, keys, bench.decode(sequences, context, options.repeats))
    for tokens in options.prefills:
        for bench in benches:
            note(bench, 1, tokens, tokens, tokens * tokens // 2, bench.prefill(tokens, options.repeats))
    cache = str(benches[0].cache_dtype).removeprefix("torch.")
    return StepReport(
        options.model or "smollm2", str(dtype).removeprefix("torch."), options.quantization, cache, machine, found
    )


def plot(report: StepReport, path: Path) -> None:
    """Plot step time and roofline by number of sequences, one panel for each context."""
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]  # optional

    decodes = [each for each in report.steps if each.tokens == each.sequences]
    contexts = sorted({each.context for each in decodes})
    figure, panels = pyplot.subplots(1, len(contexts), figsize=(4 * len(contexts), 4), sharey=True, squeeze=False)
    for panel, context in zip(panels[0], contexts, strict=True):
        for kernels in dict.fromkeys(each.kernels for each in decodes):
            mine = [each for each in decodes if each.kernels == kernels and each.context == context]
            panel.loglog([each.sequences for each in mine], [each.step_ms for each in mine], "o-", label=kernels)
        bounds = {each.sequences: each.bound_ms for each in decodes if each.context == context}
        panel.loglog(list(bounds), list(bounds.values()), "k--", label="roofline")
        panel.set(title=f"context {context}", xlabel="sequences")
        panel.grid(visible=True, which="both", alpha=0.3)
    panels[0][0].set_ylabel("ms per step")
    panels[0][0].legend()
    figure.suptitle(f"{report.model}, {report.dtype}, quantization {report.quantization}, cache {report.cache}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Parse options, run, write."""
    parser = argparse.ArgumentParser(description="Cost of a step by sequences and context")
    parser.add_argument("--model", default="", help="name of a pulled model")
    parser.add_argument("--kernels", nargs="+", default=["auto", "reference"])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--cache", default="", choices=["", *CACHE_DTYPES])
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--sequences", nargs="+", type=int, default=[1, 4, 16, 32, 64, 256])
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 1024, 4096, 8192])
    parser.add_argument("--prefills", nargs="*", type=int, default=[128, 512])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--cache-gib", type=float, default=3.0)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    report = steps(options)
    (options.out / "steps.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    try:
        plot(report, options.out / "steps.png")
    except ImportError:
        print("matplotlib is not installed: no plot")


if __name__ == "__main__":
    main()
