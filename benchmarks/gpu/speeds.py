"""How fast a GPU serves random weights of a model's shape, and what it is compared with."""

import gc
import random
import time
from collections.abc import Mapping
from typing import Any

import torch
from fakes.shell_drive import ShellDrive
from gpu.bench import GpuBench
from gpu.driving import driven
from gpu.peer import OUTPUT_TOKENS, PROMPT_TOKENS, peer_speeds

from noria.proto.execution import Geometry
from noria.proto.sampling import Sampling
from noria.services.executor.cuda.engine import ModelOnDevice
from noria.services.executor.cuda.layers.linear import DeviceLinearFactory
from noria.services.executor.cuda.loading import set_up
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.decoder import Decoder
from noria.shared.telemetry.step_timeline import measure_overlap

IDLE_MAX, BANDWIDTH_MIN, PEER_MIN = 0.03, 0.8, 3.0


class StateWeights:
    """A transformers model's weights as a checkpoint."""

    def __init__(self, model: Any) -> None:
        self._state = model.state_dict()

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def require(self, needed: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """All are there: the model was made from the same config."""
        del needed
        return ()

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """One tensor."""
        found: torch.Tensor = self._state[name]
        assert tuple(found.shape) == shape
        return found if dtype is None else found.to(dtype)

    def block_kind(self, name: str, shape: tuple[int, int]) -> str | None:
        """None has blocks."""
        return None


def speeds(bench: GpuBench, name: str, sizes: dict[str, Any]) -> None:
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
    linear_factory = DeviceLinearFactory(dtype, where)
    decoder = Decoder(
        architecture(folder),
        StateWeights(network),  # type: ignore[arg-type]
        dtype,
        settings.max_batch_tokens,
        settings.max_slots,
        linear_factory,
        device=where,
    )
    del network
    gc.collect()
    device.trim()
    made = ModelOnDevice(decoder, architecture(folder), dtype, dtype)
    pipeline, loaded = set_up(settings, device, bench.operations, made, context, free)
    own: dict[int, float] = {}
    drive = driven(pipeline, loaded)
    geometry = drive.load()
    for batch in batches:
        if bench.out_of_time(f"{name}, batch {batch}"):
            break
        with bench.checking(f"{name}, batch {batch}", f"idle at most {IDLE_MAX:.0%}") as found:
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
        met = measure_overlap(steps)
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
    bench: GpuBench, decoder: Decoder, geometry: Geometry, batch: int, context: int, found: dict[str, Any]
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


def beside(bench: GpuBench, name: str, own: dict[int, float], peers: dict[int, float]) -> None:
    """Both side by side; at batch 1 of the 8B shape the bandwidth counts."""
    with bench.checking(f"{name}, beside transformers", f"at least {PEER_MIN:g} times as fast") as found:
        ratios = {batch: own[batch] / peer for batch, peer in peers.items() if batch in own}
        found |= {f"times at {batch}": ratio for batch, ratio in ratios.items()}
        if ratios:
            found["passed"] = min(ratios.values()) >= PEER_MIN
    single = next((each for each in bench.checks if each.name == f"{name}, batch 1"), None)
    with bench.checking(f"{name}, bandwidth at batch 1", f"at least {BANDWIDTH_MIN:.0%} for 8B") as found:
        share = single.found.get("bandwidth_share") if single else None
        found["share"] = share
        if share is not None and name == "8B":
            found["passed"] = share >= BANDWIDTH_MIN
