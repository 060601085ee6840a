"""What the executor takes beside what it says, and how long a decode takes: `python benchmarks/cache_costs.py [MODEL]`.

For a bfloat16 model of full attention with a bfloat16 and an int8 cache: the bytes of the table at the start, and the
peaks while the model was loaded and while the largest steps ran, less what the interpreter and its libraries took
before. Counted is anonymous memory: pages of the mapped checkpoint are the system's to drop. Then the time of a step of
decodes with either cache, taken in turns.
"""

import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from cache_dtypes import PAGE, PROMPT, RUNS, SEQUENCE, fill, shape_of

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.backend import choose_backend
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.cpu.loading import load
from noria.services.executor.kv_cache.page_formats import CACHE_DTYPES
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.executor.plan.limits import RESERVED_CHUNKS
from noria.services.executor.plan.slot_table import SlotTable
from noria.shared.config.config import ModelSettings

BATCH, SLOTS, SHORT, DECODES = 512, 64, 8, 40
SAMPLED = Sampling(temperature=0.8, top_p=0.9, seed=1, max_tokens=1000)


def settings(model: str, cache_dtype: str, blocks: int | None, context: int | None = None) -> ExecutorConfig:
    """Return an executor configuration with the default step sizes and a fixed number of cache blocks."""
    named = ModelSettings(name=model, dtype="bfloat16", max_model_tokens=context)
    return ExecutorConfig(named, SLOTS, BATCH, PAGE, blocks, 0.6, None, cache_dtype)


def largest_steps(engine: CpuEngine) -> None:
    """Run one request of the whole context in slices as large as a step, then a step in which all slots sample."""
    shape, slots, number = engine.shape, SlotTable(engine.shape), 0
    length, pages = shape.max_model_tokens - 2, -(-shape.max_model_tokens // PAGE)
    tiles = [group.blocks_per_chunk for group in shape.groups]

    def filled(slot: int, tokens: int, chunk: int, count: int) -> Fill:
        tables = tuple(tuple(range(chunk * tile, chunk * tile + count)) for tile in tiles)
        return Fill(slot, Stream(slot, 0), 0, tuple(i % 1000 for i in range(tokens)), (), SAMPLED, (), tables)

    def step(slices: tuple[Slice, ...], fills: tuple[Fill, ...]) -> None:
        nonlocal number
        number += 1
        batch = prepare(slots, StepPlan(1, number, slices, fill=fills))
        results(slots, batch, engine.run(batch))

    for start in range(0, length, BATCH):
        count = min(BATCH, length - start)
        first = (filled(0, length, RESERVED_CHUNKS, pages),) if start == 0 else ()
        step((Slice(0, start, count, False, start + count == length),), first)
    others = range(1, SLOTS)
    fills = tuple(filled(slot, SHORT, RESERVED_CHUNKS + pages + slot, 1) for slot in others)
    step((Slice(0, length, 1, True, True), *(Slice(slot, 0, SHORT - 1, False, False) for slot in others)), fills)
    step(tuple(Slice(slot, SHORT - 1, 1, False, True) for slot in others), ())


def own_bytes() -> int:
    """Return this process's anonymous memory in bytes."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


class MemoryPeak:
    """Samples this process's memory every few milliseconds while entered; `bytes` is the largest sample."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "MemoryPeak":
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.003):
            self.bytes = max(self.bytes, own_bytes())


def bytes_taken(model: str, cache_dtype: str) -> None:
    """Print the table's sum and the peaks of this process."""
    small = ModelSettings(name=model)
    from noria.shared.model.model_folder import read_model_facts, resolve_model_folder

    blocks = (
        RESERVED_CHUNKS + -(-read_model_facts(resolve_model_folder(small), small).max_model_tokens // PAGE) + SLOTS + 1
    )
    torch.ones(256, 256) @ torch.ones(256, 256)  # what the libraries allocate for themselves when first used
    before = own_bytes()
    with MemoryPeak() as loading:
        engine, loaded = load(settings(model, cache_dtype, blocks))
    after = own_bytes() - before
    with MemoryPeak() as stepping:
        largest_steps(engine)
    shares = ", ".join(f"{share.name} {share.bytes / 2**20:.1f}" for share in loaded.memory.shares if share.bytes)
    said = sum(share.bytes for share in loaded.memory.shares)
    most = stepping.bytes - before
    print(
        f"{cache_dtype:9} said {said / 2**20:.0f} MiB ({shares}); peak while loading {(loading.bytes - before) / 2**20:.0f}, "
        f"loaded {after / 2**20:.0f}, peak in steps {most / 2**20:.0f}, {most / said:.2f} of what was said",
        flush=True,
    )


def decode_times(model: str) -> None:
    """Print the medians of a step of RUNS decodes with either cache, in turns, and their ratio."""
    decoder = load(settings(model, "auto", None, SEQUENCE))[0].decoder
    times: dict[str, list[float]] = {"bfloat16": [], "int8": []}
    engines = {name: CpuEngine(decoder, shape_of(decoder, RUNS), CACHE_DTYPES[name]) for name in times}
    slots = {name: SlotTable(engine.shape) for name, engine in engines.items()}
    start = SEQUENCE - PROMPT
    for name, engine in engines.items():
        for slot in range(RUNS):
            prompt = [(slot + i) % 1000 for i in range(start)]
            for number, begin in enumerate(range(0, start, 128), 1 + slot * (start // 128)):
                fills = (fill(engine.shape, slot, prompt),) if begin == 0 else ()
                slices = (Slice(slot, begin, 128, False, begin + 128 == start),)
                batch = prepare(slots[name], StepPlan(1, number, slices, fill=fills))
                results(slots[name], batch, engine.run(batch))
    for step in range(DECODES):
        for name, engine in engines.items():
            slices = tuple(Slice(slot, start + step, 1, True, True) for slot in range(RUNS))
            batch = prepare(slots[name], StepPlan(1, 1 + RUNS * (start // 128) + step, slices))
            began = time.perf_counter()
            ids = engine.run(batch)
            times[name].append(time.perf_counter() - began)
            results(slots[name], batch, ids)
    medians = {name: statistics.median(each) * 1000 for name, each in times.items()}
    ratio = statistics.median(b / a for a, b in zip(*times.values(), strict=True))
    print(
        f"a step of {RUNS} decodes at {start} tokens: bfloat16 {medians['bfloat16']:.1f} ms, int8 {medians['int8']:.1f} ms "
        f"(median of {DECODES}), int8 over bfloat16 {ratio:.2f} (median of pairs)",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    """Run each measure in a process of its own, by calling this program with `--bytes DTYPE` or `--decodes`."""
    if arguments[:1] == ["--bytes"]:
        bytes_taken(arguments[2], arguments[1])
    elif arguments[:1] == ["--decodes"]:
        decode_times(arguments[1])
    else:
        model = arguments[0] if arguments else "smollm2"
        print(f"kernels: {choose_backend('auto', 'none').name}", flush=True)
        for measure in (["--bytes", "bfloat16"], ["--bytes", "int8"], ["--decodes"]):
            subprocess.run([sys.executable, __file__, *measure, model], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
