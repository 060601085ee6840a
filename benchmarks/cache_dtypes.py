"""What a coarser cache costs: `python benchmarks/cache_dtypes.py [--only DTYPE] [FOLDER [TEXT ...]]`.

For each precision of the cache against float32, with a float32 model: how often the likeliest next token is the same when
both read the same text (teacher forced), how far logits are off, and after how many tokens free greedy runs part.
FOLDER is a model folder (the pulled smollm2 where absent); the text is the repository's own prose.
"""

import math
import statistics
import sys
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer

from noria.proto.base import Stream
from noria.proto.execution import Fill, Slice, StepPlan
from noria.proto.sampling import Sampling
from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.kv_cache.layer_groups import cache_groups
from noria.services.executor.kv_cache.page_formats import CACHE_DTYPES, page_bytes
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.plan.batch_builder import prepare, results
from noria.services.executor.plan.limits import RESERVED_CHUNKS, ExecutorLimits
from noria.services.executor.plan.slot_table import SlotTable
from noria.shared.config.sources import load
from noria.shared.model.model_folder import resolve_model_folder

SEQUENCE, STEP, SEQUENCES = 1024, 256, 6
PROMPT, FREE, RUNS = 128, 64, 16
PAGE = 16
GREEDY = Sampling(temperature=0.0, max_tokens=FREE)
ROOT = Path(__file__).parent.parent


class LogitDifference(msgspec.Struct, frozen=True):
    """Difference between two caches' logits on the same text: share of equal argmax tokens, rms and largest difference."""

    tokens: int
    agreement: float
    rms: float
    largest: float


def prose(folder: Path, texts: list[Path]) -> list[int]:
    """Return token ids of the texts, or of the repository's own documents."""
    texts = texts or [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE")),
        *sorted((ROOT / "docs/decisions").glob("*.md")),
    ]
    text = "\n".join(each.read_text() for each in texts)
    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)


def sequences_of(ids: list[int]) -> list[list[int]]:
    """Return the first SEQUENCES pieces of SEQUENCE tokens."""
    count = min(SEQUENCES, len(ids) // SEQUENCE)
    return [ids[i * SEQUENCE : (i + 1) * SEQUENCE] for i in range(count)]


def compare(exact: CpuEngine, coarse: CpuEngine, sequences: list[list[int]]) -> LogitDifference:
    """Run both engines over the same text, teacher forced, and compare their logits."""
    same, squares, largest = 0, 0.0, 0.0
    for sequence in sequences:
        wanted, found = forced(exact, sequence), forced(coarse, sequence)
        same += int((found.argmax(-1) == wanted.argmax(-1)).sum())
        off = found.sub_(wanted)
        squares += float(off.pow(2).mean()) / len(sequences)
        largest = max(largest, float(off.abs().max()))
    tokens = len(sequences) * SEQUENCE
    return LogitDifference(tokens, same / tokens, math.sqrt(squares), largest)


def shape_of(decoder: Decoder, slots: int) -> ExecutorLimits:
    """Return limits with a cache that holds SEQUENCE tokens for each slot."""
    facts = decoder.architecture
    groups = cache_groups(facts.windows, SEQUENCE + 1, STEP, PAGE)
    chunks = RESERVED_CHUNKS + len(groups) * slots * (SEQUENCE // PAGE + 1)
    return ExecutorLimits(slots, STEP, SEQUENCE + 1, PAGE, chunks, facts.vocabulary, groups)


def fill(shape: ExecutorLimits, slot: int, ids: list[int]) -> Fill:
    """Return the fill of a slot with all blocks that SEQUENCE tokens need, from chunks of its own."""
    pages = SEQUENCE // PAGE + 1
    tables = []
    for number, group in enumerate(shape.groups):
        first = (RESERVED_CHUNKS + (number * shape.max_slots + slot) * pages) * group.blocks_per_chunk
        count = min(pages, group.ring_pages) if group.ring_pages else pages
        tables.append(tuple(range(first, first + count)))
    return Fill(slot, Stream(slot, 0), 0, tuple(ids), (), GREEDY, (), tuple(tables))


def forced(engine: CpuEngine, sequence: list[int]) -> torch.Tensor:
    """Return the logits [tokens, vocabulary] of every position of a text."""
    slots, found = SlotTable(engine.shape), []
    for number, start in enumerate(range(0, SEQUENCE, STEP), 1):
        first = (fill(engine.shape, 0, sequence),) if number == 1 else ()
        batch = prepare(slots, StepPlan(1, number, (Slice(0, start, STEP, False, False),), fill=first))
        logits = engine.logits(batch, everywhere=True)
        assert logits is not None
        found.append(logits)
    return torch.cat(found)


def free(engine: CpuEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Return greedy continuations of FREE tokens, computed in one batch."""
    slots, number = SlotTable(engine.shape), 0
    found: list[list[int]] = [[] for _ in prompts]
    for slot, prompt in enumerate(prompts):
        number += 1
        plan = StepPlan(1, number, (Slice(slot, 0, PROMPT, False, True),), fill=(fill(engine.shape, slot, prompt),))
        _take(engine, slots, plan, found)
    for step in range(FREE - 1):
        number += 1
        slices = tuple(Slice(slot, PROMPT + step, 1, True, True) for slot in range(len(prompts)))
        _take(engine, slots, StepPlan(1, number, slices), found)
    return found


def _take(engine: CpuEngine, slots: SlotTable, plan: StepPlan, found: list[list[int]]) -> None:
    batch = prepare(slots, plan)
    for sampled in results(slots, batch, engine.run(batch)):
        found[sampled.stream.request].extend(sampled.ids)


def main(arguments: list[str]) -> None:
    """Print one line for each precision, each as soon as it is known."""
    only = arguments[1] if arguments[:1] == ["--only"] else ""
    arguments = arguments[2:] if only else arguments
    folder = Path(arguments[0]) if arguments else resolve_model_folder(load(None).model)
    ids = prose(folder, [Path(each) for each in arguments[1:]])
    sequences = sequences_of(ids)
    stride = (len(sequences) * SEQUENCE - PROMPT) // RUNS
    prompts = [ids[i * stride : i * stride + PROMPT] for i in range(RUNS)]
    facts = architecture(folder)
    decoder = Decoder(facts, Checkpoint(folder), torch.float32, STEP, STEP)
    bf16 = page_bytes(facts, PAGE, torch.bfloat16)
    exact = CpuEngine(decoder, shape_of(decoder, RUNS))
    exact_runs = free(exact, prompts)
    print(f"{len(sequences) * SEQUENCE} tokens read, {RUNS} free runs of {FREE} tokens", flush=True)
    for name, dtype in CACHE_DTYPES.items():
        if name == "float32" or (only and name != only):
            continue
        # One decoder serves all: only the cache differs.
        coarse = CpuEngine(decoder, shape_of(decoder, RUNS), dtype)
        apart = compare(exact, coarse, sequences)
        parted = [_first_difference(*each) for each in zip(exact_runs, free(coarse, prompts), strict=True)]
        print(
            f"{name:9} {page_bytes(facts, PAGE, dtype) / bf16:.3f} of bfloat16's bytes, top-1 agreement "
            f"{apart.agreement:.4f}, logits off by {apart.rms:.4f} (rms), {apart.largest:.3f} (max), free runs "
            f"part after {statistics.mean(parted):.1f} tokens on average, {sum(each == FREE for each in parted)} never",
            flush=True,
        )


def _first_difference(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


if __name__ == "__main__":
    main(sys.argv[1:])
