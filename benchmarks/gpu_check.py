"""Everything that only a GPU can show, in one run of less than eight minutes: `PYTHONPATH=tests python benchmarks/gpu_check.py`.

Compares logits with the processor's reference for tiny models of every family, and the tokens of a real model where one is
at hand; graphs with plain computing, two steps in flight with one, and what a swap brings back with what it took. Then
random weights of the shapes of a 1B and an 8B Llama: the device's idle time between steps, tokens per second by batch size,
beside transformers' continuous batching on the same weights, and how much of the memory's bandwidth decoding uses.

Prints JSON, writes it to --out, and ends with 1 when a check fails. With --dry-run everything runs in small, on a
processor, on the device that tests use: the figures mean nothing then, but every line has run.
"""

import argparse
import gc
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from fakes.shell_drive import ShellDrive

from noria.proto.base import Sampling, Stream
from noria.proto.execution import Copy, Fill, Geometry, Slice, StepPlan
from noria.services.executor.batch import Batch, prepare
from noria.services.executor.checkpoint import Checkpoint
from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cuda.choosing import choose_operations
from noria.services.executor.cuda.lane import CudaLane
from noria.services.executor.cuda.loading import Made, load, set_up
from noria.services.executor.cuda.pipeline import Pipeline
from noria.services.executor.cuda.products import DeviceProducts
from noria.services.executor.cuda.streams import Device
from noria.services.executor.cuda.torch_device import open_device
from noria.services.executor.decoder import Decoder
from noria.services.executor.device.inputs import host_buffer, inputs
from noria.services.executor.device.layout import Layout
from noria.services.executor.device.sizes import needed
from noria.services.executor.engine import Engine
from noria.services.executor.families import architecture
from noria.services.executor.loaded import Loaded
from noria.services.executor.shape import Shape
from noria.services.executor.slots import Slots
from noria.services.scheduler.core.settings import Settings
from noria.shared.config import LogSettings, ModelSettings
from noria.shared.errors import UserError
from noria.shared.log import configure
from noria.shared.models import resolve
from noria.shared.step_times import overlap

SECONDS: Final = 450.0
IDLE_MAX, BANDWIDTH_MIN, PEER_MIN = 0.03, 0.8, 3.0
PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64

SMALL = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
FAMILIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "mistral, sliding": ("Mistral", {"sliding_window": 24}),
    "gemma 2": ("Gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 20.0}),
    "gemma 3": (
        "Gemma3Text",
        {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 32},
    ),
    "phi 3": ("Phi3", {"pad_token_id": 0}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen3 moe": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
}
LLAMAS: Final = {
    "1B": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "8B": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
}


class Check(msgspec.Struct, frozen=True):
    """One thing looked at. goal: in words; passed: None where it has no goal or could not be looked at."""

    name: str
    passed: bool | None
    found: dict[str, Any]
    goal: str = ""


class Report(msgspec.Struct, frozen=True):
    """The whole run."""

    hardware: str
    software: dict[str, str]
    date: str
    dry_run: bool
    seconds: float
    checks: list[Check]


class Bench:
    """What the checks share: a device, sizes, and the time that is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.dry: bool = options.dry_run
        self.model: str = options.model
        self.ends_s = time.monotonic() + options.seconds
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.checks: list[Check] = []
        self.dtype = "float32" if self.dry else "bfloat16"

    def device(self) -> Device:
        """A GPU, or in a dry run a processor that plays one."""
        if not self.dry:
            return open_device()
        from fakes.device import FakeDevice

        return FakeDevice(0)

    def config(self, name: str, **changes: Any) -> ExecutorConfig:
        """An executor's configuration for a small model."""
        values: dict[str, Any] = {
            "max_slots": 8,
            "max_batch_tokens": 128,
            "page_size": 16,
            "num_blocks": 200,
            "max_memory_percent": 0.9,
            "threads": None,
            "device": "cuda",
            "q_padding_interval_size": 32,
            "kv_padding_interval_size": 256,
            "graphs_max": 16,
        }
        settings = ModelSettings(name=name, dtype=changes.pop("dtype", self.dtype), max_model_tokens=384)  # type: ignore[arg-type]
        return ExecutorConfig(model=settings, **{**values, **changes})

    def over(self, name: str) -> bool:
        """Whether there is no time left for a check; it is told among the others then."""
        if time.monotonic() < self.ends_s:
            return False
        self.checks.append(Check(name, None, {"skipped": "the time is up"}))
        return True

    @contextmanager
    def looking(self, name: str, goal: str = "") -> Iterator[dict[str, Any]]:
        """One check: what raises has failed. `found["passed"]`, where set, becomes its verdict."""
        found: dict[str, Any] = {}
        began_s = time.monotonic()
        try:
            yield found
        except Exception as error:  # one check that fails in whatever way must not cost the report of the others
            found |= {"passed": False, "error": f"{type(error).__name__}: {error}"[:500]}
        found["seconds"] = round(time.monotonic() - began_s, 2)
        passed = found.pop("passed", None)
        self.checks.append(Check(name, passed, found, goal))
        print(f"{name}: {'passed' if passed else 'FAILED' if passed is False else '-'} {found}", file=sys.stderr)


def tiny(folder: Path, family: str, options: dict[str, Any]) -> Path:
    """A model folder of a family, with random weights."""
    import transformers

    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(**{**SMALL, **options})
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).float().eval()
    model.save_pretrained(folder)
    return folder


def asked(count: int, vocabulary: int, seed: int = 0) -> list[tuple[tuple[int, ...], Sampling]]:
    """Requests of mixed lengths: greedy ones, and some that sample with a seed."""
    chance = random.Random(seed)
    return [
        (
            tuple(chance.randrange(3, vocabulary) for _ in range(chance.randrange(2, 100))),
            Sampling(temperature=float(number % 3 == 2), seed=number, max_tokens=24, ignore_eos=True),
        )
        for number in range(count)
    ]


def driven(pipeline: Pipeline, loaded: Loaded, in_flight: int = 2) -> ShellDrive:
    """The product's scheduler and shell over a lane of this pipeline."""
    shape = loaded.shape
    return ShellDrive(
        lambda wake: CudaLane(lambda tell: (pipeline, loaded), wake),
        Settings(
            max_batch_tokens=shape.max_batch_tokens, max_requests_per_batch=shape.max_slots, steps_in_flight=in_flight
        ),
    )


def tokens(pipeline: Pipeline, loaded: Loaded, requests: Sequence[Any], in_flight: int = 2) -> list[list[int]]:
    """What a lane answers."""
    drive = driven(pipeline, loaded, in_flight)
    found = drive.run(drive.load(), list(requests))
    drive.close()
    return found


def prompts_batch(shape: Shape, lengths: Sequence[int]) -> Batch:
    """One step of whole prompts, each sampled."""
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
    """The logits of a step's sampled rows, computed plainly."""
    engine = pipeline.engine
    layout = Layout(engine.shape, needed(batch, engine.operations.tile_tokens), engine.operations.tile_tokens)
    host = host_buffer(layout)
    layout.fill(host.numpy(), batch)
    step = inputs(layout, host.to(engine.pool.data.device))
    engine.plan(batch, layout.sizes)
    logits = engine.forward(step)
    assert logits is not None
    return logits.float().cpu()


def numerics(bench: Bench, name: str, folder: Path) -> None:
    """A step of prompts of several lengths by the device and by the processor's reference, in float32 and bfloat16."""
    for dtype, allowed in (("float32", 1e-3), ("bfloat16", 0.08)):
        if bench.dry and dtype != bench.dtype:
            continue
        goal = f"root mean square error at most {allowed:g} of the logits' spread"
        with bench.looking(f"numerics: {name}, {dtype}", goal) as found:
            pipeline, loaded = load(bench.config(str(folder), dtype=dtype), bench.device(), choose_operations)
            batch = prompts_batch(loaded.shape, (1, 2, 17, 40, 60))
            facts, shape = architecture(folder), loaded.shape
            plain = Decoder(facts, Checkpoint(folder), torch.float32, shape.max_batch_tokens, shape.max_slots)
            want = Engine(plain, shape).logits(batch)
            assert want is not None
            error = (device_logits(pipeline, batch) - want).square().mean().sqrt() / want.std()
            found |= {"error": float(error), "kernels": loaded.kernels, "passed": bool(error <= allowed)}


def equalities(bench: Bench, folder: Path) -> None:
    """Graph replay and plain computing, two steps in flight and one: the same tokens."""
    requests = asked(12, SMALL["vocab_size"])  # type: ignore[arg-type]
    with bench.looking("replay equals plain computing", "the same tokens") as found:
        recorded = load(bench.config(str(folder)), bench.device(), choose_operations)
        eager = load(bench.config(str(folder), graphs_max=0), bench.device(), choose_operations)
        one, other = tokens(*recorded, requests), tokens(*eager, requests)
        again = tokens(*recorded, requests)  # by now every shape has its graph
        found |= {"graphs": len(recorded[0].recorded.book), "refused": recorded[0].recorded.book.refused}
        found["passed"] = one == other == again and len(recorded[0].recorded.book) > 0
    with bench.looking("two steps in flight equal one", "the same tokens") as found:
        pipeline = load(bench.config(str(folder)), bench.device(), choose_operations)
        alone = tokens(*pipeline, requests, in_flight=1)
        found["passed"] = tokens(*pipeline, requests, in_flight=2) == alone


def swaps(bench: Bench, folder: Path) -> None:
    """What goes to the host comes back with its bytes, into other blocks, while steps compute."""
    with bench.looking("swap round trip", "the same bytes") as found:
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


def real_model(bench: Bench) -> None:
    """The greedy tokens of a real model, by the device and by the processor, in float32."""
    with bench.looking(f"tokens of {bench.model}", "equal until two ids are as likely") as found:
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


class StateWeights:
    """A transformers model's weights as a checkpoint."""

    def __init__(self, model: Any) -> None:
        self._state = model.state_dict()

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """One tensor."""
        found: torch.Tensor = self._state[name]
        assert tuple(found.shape) == shape
        return found if dtype is None else found.to(dtype)

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """None has blocks."""
        return None


def speeds(bench: Bench, name: str, sizes: dict[str, Any]) -> None:
    """Tokens per second by batch size, beside transformers; idle share; share of the bandwidth."""
    import transformers

    where, dtype = (torch.device("cpu"), torch.float32) if bench.dry else (torch.device("cuda"), torch.bfloat16)
    batches = (1, 4) if bench.dry else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    context, output = (48, 6) if bench.dry else (PROMPT_TOKENS + OUTPUT_TOKENS + 16, OUTPUT_TOKENS)
    config = transformers.LlamaConfig(**{**sizes, "max_position_embeddings": max(context, 64)})
    folder = bench.folder / name
    config.save_pretrained(folder)
    device = bench.device()
    free, _ = device.free()
    torch.manual_seed(1)
    with where:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        network = transformers.LlamaForCausalLM(config).eval()
        torch.set_default_dtype(before)
    peers = {} if bench.dry else peer_speeds(bench, name, network, config.vocab_size, (1, 32, 256))
    settings = bench.config(
        str(folder),
        max_slots=max(batches),
        max_batch_tokens=64 if bench.dry else 2048,
        num_blocks=None if not bench.dry else 200,
        kv_padding_interval_size=4096,
    )
    products = DeviceProducts(dtype, where)
    decoder = Decoder(
        architecture(folder),
        StateWeights(network),  # type: ignore[arg-type]
        dtype,
        settings.max_batch_tokens,
        settings.max_slots,
        products,
        device=where,
    )
    del network
    gc.collect()
    device.trim()
    made = Made(decoder, architecture(folder), dtype, dtype)
    pipeline, loaded = set_up(settings, device, choose_operations, made, context, free)
    own: dict[int, float] = {}
    drive = driven(pipeline, loaded)
    geometry = drive.load()
    for batch in batches:
        if bench.over(f"{name}, batch {batch}"):
            break
        with bench.looking(f"{name}, batch {batch}", f"idle at most {IDLE_MAX:.0%}") as found:
            for _ in range(2):  # afterwards every shape is recorded
                measure(drive, geometry, batch, config.vocab_size, output)
            own[batch] = measure(drive, geometry, batch, config.vocab_size, output, found)
            share = bandwidth_share(bench, decoder, geometry, batch, context - output // 2, found)
            if batch == 1 and share is not None:
                found["bandwidth_share"] = share
            found["passed"] = bench.dry or found["idle_share"] <= IDLE_MAX
    drive.close()
    if 1 in own and not bench.dry:
        beside(bench, name, own, peers)


def measure(
    drive: ShellDrive,
    geometry: Geometry,
    batch: int,
    vocabulary: int,
    output: int,
    found: dict[str, Any] | None = None,
) -> float:
    """Output tokens per second of so many equal requests from the first submission to the last end."""
    chance = random.Random(batch)
    length = min(PROMPT_TOKENS, geometry.max_model_tokens - output - 1)
    requests = [
        (
            tuple(chance.randrange(3, vocabulary) for _ in range(length)),
            Sampling(temperature=0.0, max_tokens=output, ignore_eos=True),
        )
        for _ in range(batch)
    ]
    drive.shell.step_times.clear()
    began_s = time.monotonic()
    answers = drive.run(geometry, requests)
    seconds = time.monotonic() - began_s
    assert sum(map(len, answers)) == batch * output and not drive.failures
    if found is not None:
        steps = [each for each in drive.shell.step_times if each.query_tokens == batch]
        met = overlap(steps)
        times = sorted((each.ended_ns - each.began_ns) / 1e6 for each in steps)
        found |= {
            "tokens_per_s": batch * output / seconds,
            "decode_step_ms": times[len(times) // 2] if times else None,
            "idle_share": met.idle,
            "prepared_beside": met.prepared / max(1, met.steps),
            "ways": sorted({each.way for each in steps}),
        }
    return batch * output / seconds


def bandwidth_share(
    bench: Bench, decoder: Decoder, geometry: Geometry, batch: int, context: int, found: dict[str, Any]
) -> float | None:
    """Bytes that a decode step must read, by its time, as a share of what a large copy reads and writes."""
    if bench.dry or not found.get("decode_step_ms"):
        return None
    one = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(one)
    rates = []
    for _ in range(5):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        other.copy_(one)
        ended.record()
        torch.cuda.synchronize()
        rates.append(2 * one.nbytes / began.elapsed_time(ended) * 1e3)
    del one, other
    facts = decoder.architecture
    cached = 2 * facts.layers * facts.key_width * 2 * context * batch
    table = facts.vocabulary * facts.hidden * 2  # of the embedding, which the head has a copy of, only rows are read
    read = decoder.nbytes - table + cached
    found |= {"read_gb": read / 1e9, "copy_gb_per_s": max(rates) / 1e9}
    return read / (found["decode_step_ms"] / 1e3) / max(rates)


def peer_speeds(bench: Bench, name: str, network: Any, vocabulary: int, batches: Sequence[int]) -> dict[int, float]:
    """Tokens per second of transformers' continuous batching for the same requests."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    found: dict[int, float] = {}
    with bench.looking(f"{name}, transformers' continuous batching") as told:
        generation = GenerationConfig(max_new_tokens=OUTPUT_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
        batching = ContinuousBatchingConfig(
            max_requests_per_batch=max(batches), max_memory_percent=0.5, use_cuda_graph=True
        )
        for batch in batches:
            chance = random.Random(batch)
            prompts = [[chance.randrange(3, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
            for _ in range(2):  # the first warms up
                began_s = time.monotonic()
                outputs = network.generate_batch(
                    prompts, generation_config=generation, continuous_batching_config=batching, persistent_manager=True
                )
                seconds = time.monotonic() - began_s
            count = sum(len(each.generated_tokens) for each in outputs.values())
            found[batch] = count / seconds
        network.destroy_cached_continuous_batching_manager()
        told |= {f"tokens_per_s at {batch}": rate for batch, rate in found.items()}
    return found


def beside(bench: Bench, name: str, own: dict[int, float], peers: dict[int, float]) -> None:
    """Both side by side; at batch 1 of the 8B shape the bandwidth counts."""
    with bench.looking(f"{name}, beside transformers", f"at least {PEER_MIN:g} times as fast") as found:
        ratios = {batch: own[batch] / peer for batch, peer in peers.items() if batch in own}
        found |= {f"times at {batch}": ratio for batch, ratio in ratios.items()}
        if ratios:
            found["passed"] = min(ratios.values()) >= PEER_MIN
    single = next((each for each in bench.checks if each.name == f"{name}, batch 1"), None)
    with bench.looking(f"{name}, bandwidth at batch 1", f"at least {BANDWIDTH_MIN:.0%} for 8B") as found:
        share = single.found.get("bandwidth_share") if single else None
        found["share"] = share
        if share is not None and name == "8B":
            found["passed"] = share >= BANDWIDTH_MIN


def run(options: argparse.Namespace) -> Report:
    """All checks, as long as there is time."""
    began_s = time.monotonic()
    bench = Bench(options)
    with torch.no_grad():
        look(bench)
    hardware = platform.processor() or platform.machine()
    if not bench.dry:
        hardware = f"{torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory >> 30} GiB"
    return Report(
        hardware,
        {"torch": str(torch.__version__), "cuda": str(torch.version.cuda), "python": platform.python_version()},
        datetime.now(UTC).date().isoformat(),
        bench.dry,
        round(time.monotonic() - began_s, 1),
        bench.checks,
    )


def look(bench: Bench) -> None:
    """One check after the other."""
    bench.device()  # without one, nothing else need be tried
    families = dict(list(FAMILIES.items())[: 4 if bench.dry else None])
    for name, (family, changes) in families.items():
        folder = bench.folder / name.replace(" ", "-").replace(",", "")
        with bench.looking(f"weights: {name}"):
            tiny(folder, family, changes)
        if (folder / "config.json").exists() and not bench.over(f"numerics: {name}"):
            numerics(bench, name, folder)
    equalities(bench, bench.folder / "llama")
    swaps(bench, bench.folder / "llama")
    real_model(bench)
    shapes = {"dry": {**SMALL, "tie_word_embeddings": True}} if bench.dry else LLAMAS
    for name, sizes in shapes.items():
        if not bench.over(name):
            with bench.looking(f"{name}: set up"):
                speeds(bench, name, sizes)
            gc.collect()


def main(arguments: Sequence[str] | None = None, tell: Callable[[str], None] = print) -> int:
    """Run, print and write; 1 when a check failed, 2 when there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes, too")
    parser.add_argument("--model", default="smollm2", help="a real model, compared where it has been pulled")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no check begins after so many")
    parser.add_argument("--dry-run", action="store_true", help="in small, on a processor")
    options = parser.parse_args(arguments)
    try:
        report = run(options)
    except UserError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    text = msgspec.json.format(msgspec.json.encode(report)).decode()
    tell(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return int(any(each.passed is False for each in report.checks))


if __name__ == "__main__":
    configure(LogSettings(level="error"))
    raise SystemExit(main())
