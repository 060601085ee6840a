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
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import torch

from noria.shared.config.config import LogSettings
from noria.shared.errors import UserError
from noria.shared.telemetry.log import configure

sys.path.insert(0, str(Path(__file__).parent))
from gpu.bench import GpuBench, GpuReport
from gpu.equality import equalities, numerics, real_model, swaps
from gpu.models import FAMILIES, LLAMAS, SMALL, tiny
from gpu.speeds import speeds

SECONDS: Final = 450.0


def run(options: argparse.Namespace) -> GpuReport:
    """All checks, as long as there is time."""
    began_s = time.monotonic()
    bench = GpuBench(options)
    with torch.no_grad():
        look(bench)
    hardware = platform.processor() or platform.machine()
    if not bench.dry:
        hardware = f"{torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory >> 30} GiB"
    return GpuReport(
        hardware,
        {"torch": str(torch.__version__), "cuda": str(torch.version.cuda), "python": platform.python_version()},
        datetime.now(UTC).date().isoformat(),
        bench.dry,
        round(time.monotonic() - began_s, 1),
        bench.checks,
    )


def look(bench: GpuBench) -> None:
    """One check after the other."""
    bench.device()  # without one, nothing else need be tried
    families = dict(list(FAMILIES.items())[: 4 if bench.dry else None])
    for name, (family, changes) in families.items():
        folder = bench.folder / name.replace(" ", "-").replace(",", "")
        with bench.checking(f"weights: {name}"):
            tiny(folder, family, changes)
        if (folder / "config.json").exists() and not bench.out_of_time(f"numerics: {name}"):
            numerics(bench, name, folder)
    equalities(bench, bench.folder / "llama")
    swaps(bench, bench.folder / "llama")
    real_model(bench)
    shapes = {"dry": {**SMALL, "tie_word_embeddings": True}} if bench.dry else LLAMAS
    for name, sizes in shapes.items():
        if not bench.out_of_time(name):
            with bench.checking(f"{name}: set up"):
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
