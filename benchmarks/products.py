"""Matrix products against the machine: `python benchmarks/products.py [--rows N,N...] [--kinds NAME,...] [FOLDER]`.

For numbers of rows as steps have them: how long all matrix products of a step take, with weights in bfloat16 and int8 by
the native kernels and in bfloat16 by PyTorch's packed oneDNN products, each the median of repeats in turn. Beside them
the floor of bfloat16: the larger of its operations at the measured peak (the best of the same kinds on a product large
enough to hide everything else) and its bytes at the measured bandwidth. FOLDER is a model folder (the pulled smollm2
where absent); its weights are far larger than any cache, so that every layer's come from memory.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from noria.services.executor.cpu.native.library import open_kernels
from noria.services.executor.cpu.native.linear import NativeLinearFactory
from noria.services.executor.model.architecture import Architecture, architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.linear_layers import Linear, WeightMatrix
from noria.services.executor.model.packed_weights import PackedWeights
from noria.services.executor.model.reference_linear import ReferenceLinear
from noria.services.executor.runner.machine import cores
from noria.shared.config.sources import load
from noria.shared.model.model_folder import resolve_model_folder

ROWS = (1, 4, 16, 32, 64, 256, 512)
REPEATS = 7
PEAK_SIZE, PEAK_ROWS = 2048, 1536
READ_INPUTS, READ_OUTPUTS = 4096, 24576


clock = time.perf_counter
"""With one thread replaced by the time that this thread computed, which other processes do not lengthen."""


def matrices(facts: Architecture, checkpoint: Checkpoint) -> dict[str, list[WeightMatrix]]:
    """The products of a step by shape, each layer's its own; logits of every row."""
    query, key, hidden, inner = facts.heads * facts.head_dim, facts.key_width, facts.hidden, facts.intermediate
    found: dict[str, list[WeightMatrix]] = {"qkv": [], "out": [], "gate, up": [], "down": []}
    for layer in range(facts.layers):
        attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        qkv = tuple((f"{attention}{name}_proj", size) for name, size in (("q", query), ("k", key), ("v", key)))
        found["qkv"].append(WeightMatrix(checkpoint, qkv, hidden))
        found["out"].append(WeightMatrix(checkpoint, ((attention + "o_proj", hidden),), query))
        gate_up = tuple((f"{mlp}{name}_proj", inner) for name in ("gate", "up"))
        found["gate, up"].append(WeightMatrix(checkpoint, gate_up, hidden))
        found["down"].append(WeightMatrix(checkpoint, ((mlp + "down_proj", hidden),), inner))
    head = "lm_head" if "lm_head.weight" in checkpoint else "model.embed_tokens"
    found["head"] = [WeightMatrix(checkpoint, ((head, facts.vocabulary),), hidden)]
    return found


def makers(threads: int, level: str) -> dict[str, Callable[[WeightMatrix], Linear]]:
    """How each kind makes a product."""
    kernels = open_kernels(level)

    def native(quantization: str, dtype: torch.dtype) -> Callable[[WeightMatrix], Linear]:
        products = NativeLinearFactory(kernels, dtype, quantization, PackedWeights(), threads)
        return lambda matrix: products.linear(matrix, max(ROWS))

    return {
        "bfloat16": native("none", torch.bfloat16),
        "int8": native("int8", torch.bfloat16),
        "float32": native("none", torch.float32),
        "oneDNN": lambda matrix: ReferenceLinear(matrix.weights(torch.bfloat16), None, 1),
    }


def timed(products: dict[str, list[Linear]], rows: int, dtype: torch.dtype) -> dict[str, float]:
    """Milliseconds of each shape's products, one after the other as a step has them."""
    inputs = {shape: torch.randn(rows, of[0].inputs).to(dtype) for shape, of in products.items()}
    taken = dict.fromkeys(products, 0.0)
    for layer in range(max(map(len, products.values()))):
        for shape, of in products.items():
            if layer < len(of):
                began = clock()
                of[layer](inputs[shape])
                taken[shape] += (clock() - began) * 1e3
    return taken


class Square:
    """A checkpoint of one large random matrix."""

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        """Random numbers, whatever the name."""
        del name
        return torch.randn(shape).to(dtype or torch.float32)

    def block_kind(self, name: str, shape: tuple[int, int]) -> None:
        """It is kept in no blocks."""

    blocks = block_kind


def peak(make: dict[str, Callable[[WeightMatrix], Linear]], dtypes: dict[str, torch.dtype]) -> dict[str, float]:
    """Operations a second of each kind on a large product, in units of 1e9."""
    matrix = WeightMatrix(Square(), (("square", PEAK_SIZE),), PEAK_SIZE)  # type: ignore[arg-type]  # all that it needs
    found = {}
    for kind, maker in make.items():
        product, x = maker(matrix), torch.randn(PEAK_ROWS, PEAK_SIZE).to(dtypes[kind])
        best = min(_seconds(lambda product=product, x=x: product(x)) for _ in range(REPEATS))
        found[kind] = 2 * PEAK_ROWS * PEAK_SIZE**2 / best / 1e9
    return found


def bandwidth(threads: int, level: str = "auto") -> float:
    """Bytes a second read from memory, in units of 1e9, from arrays beyond any cache.

    The better of a sum and of our own product with one row: PyTorch's sum reads at half of what this machine can.
    """
    array = torch.ones(64 << 20, dtype=torch.float32)
    summed = array.nbytes / min(_seconds(array.sum) for _ in range(REPEATS))
    matrix = WeightMatrix(Square(), (("square", READ_OUTPUTS),), READ_INPUTS)  # type: ignore[arg-type]  # all that it needs
    product, x = makers(threads, level)["bfloat16"](matrix), torch.randn(1, READ_INPUTS).to(torch.bfloat16)
    read = 2 * READ_INPUTS * READ_OUTPUTS / min(_seconds(lambda: product(x)) for _ in range(REPEATS))
    return max(summed, read) / 1e9


def _seconds(call: Callable[[], object]) -> float:
    began = clock()
    call()
    return clock() - began


def main() -> None:
    """Print a table for each number of rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--kinds", default="bfloat16,int8,oneDNN")
    parser.add_argument("--level", default="auto")
    parser.add_argument("--threads", type=int, default=cores())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.threads == 1:
        global clock  # noqa: PLW0603 - a script, which chooses its clock once
        clock = time.thread_time
    folder = Path(options.folder) if options.folder else resolve_model_folder(load(None).model)
    shapes = matrices(architecture(folder), Checkpoint(folder))
    make = makers(options.threads, options.level)
    make = {kind: make[kind] for kind in options.kinds.split(",")}
    dtypes = {kind: torch.float32 if kind == "float32" else torch.bfloat16 for kind in make}
    peaks, read = peak(make, dtypes), bandwidth(options.threads, options.level)
    best = max(
        (value for kind, value in peaks.items() if dtypes[kind] is torch.bfloat16 and kind != "int8"), default=0.0
    )
    print(
        f"{options.threads} threads; peak in 1e9 operations/s:", {kind: round(value) for kind, value in peaks.items()}
    )
    print(f"memory read: {read:.1f}e9 bytes/s")
    made = {kind: {shape: [maker(each) for each in of] for shape, of in shapes.items()} for kind, maker in make.items()}
    numbers = sum(each.outputs * each.inputs for of in shapes.values() for each in of)
    for rows in map(int, options.rows.split(",")):
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in made}
        for _ in range(REPEATS + 1):
            for kind, products in made.items():
                runs[kind].append(timed(products, rows, dtypes[kind]))
        medians = {
            kind: {shape: statistics.median(each[shape] for each in of[1:]) for shape in shapes}
            for kind, of in runs.items()
        }
        floor = max(2 * numbers * rows / (best * 1e6) if best else 0.0, 2 * numbers / (read * 1e6))
        print(f"\n{rows} rows; floor of bfloat16 {floor:.1f} ms")
        for kind, by_shape in medians.items():
            total = sum(by_shape.values())
            print(
                f"  {kind:9} {total:8.2f} ms  {floor / total:5.0%}  ",
                *(f"{k} {v:.2f}" for k, v in by_shape.items()),
                flush=True,
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
