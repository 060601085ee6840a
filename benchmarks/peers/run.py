"""Measures Noria and its peers side by side: `python benchmarks/peers/run.py --workloads FOLDER --out FOLDER`.

Each round starts every engine once, alone, runs all measures on it and stops it, so that engines alternate and a change
of the machine's mood meets all of them. The rate of the half-load measure is half of what the first peer did in its first
closed run, the same for all. What --out has already is not measured again, so that a long run can be cut anywhere and
repeated. See docs/benchmarks.md.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from engines import DEFAULT_FOLDER, ENGINES, Engine, Place
from measures import MEASURES, BenchResult, Measure, measured
from report import ServerNotes, write_report
from serving import Server, StartError, serving

_RATE_FILE: Final = "rate"


def main() -> None:
    """Measure, then report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", type=Path, required=True, help="folder of the workload_*.jsonl files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where install.py put the peers")
    parser.add_argument("--model", type=Path, default=Path("~/.cache/noria/models/smollm2"), help="Hugging Face folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", nargs="*", choices=[each.name for each in ENGINES], help="all where absent")
    parser.add_argument("--measures", nargs="*", choices=[each.name for each in MEASURES], help="all where absent")
    parser.add_argument("--requests", type=int, help="fewer requests in each measure, for a look")
    parser.add_argument("--rate", type=float, help="requests/s of the half-load measure")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the server is stopped
    place = Place(options.folder.expanduser().resolve(), options.model.expanduser().resolve(), options.threads)
    raw = options.out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    engines = [each for each in ENGINES if each.name in (options.engines or [other.name for other in ENGINES])]
    wanted = [each for each in MEASURES if each.name in (options.measures or [other.name for other in MEASURES])]
    notes = ServerNotes(raw / "notes.json")
    for engine in [each for each in engines if not each.needs(place).exists()]:
        print(f"{engine.name} is left out: {engine.needs(place)} is missing (install.py)", flush=True)
        engines.remove(engine)
    for number in range(1, options.repeats + 1):
        for engine in engines:
            round_of(engine, number, wanted, place, raw, notes, options)
    write_report(options.out, raw, engines, wanted, notes)


def round_of(
    engine: Engine,
    number: int,
    wanted: list[Measure],
    place: Place,
    raw: Path,
    notes: ServerNotes,
    options: argparse.Namespace,
) -> None:
    """Run all measures of one engine that are still missing from this round."""
    names = {
        each.name: raw / f"{engine.name}.{each.name}.{number}.json" for each in wanted if engine.kind in each.kinds
    }
    missing = [each for each in wanted if each.name in names and not names[each.name].exists()]
    if not missing:
        return
    try:
        with serving(engine, place, raw / f"{engine.name}.log") as server:
            notes.started(engine.name, server.start_s)
            print(f"round {number}, {engine.name}: ready after {server.start_s:.1f} s", flush=True)
            for measure in missing:
                one(measure, server, names[measure.name], raw, options)
            notes.weighed(engine.name, server.memory_gb())
    except (StartError, subprocess.CalledProcessError) as error:
        print(f"round {number}, {engine.name} failed: {error}", flush=True)


def one(measure: Measure, server: Server, out: Path, raw: Path, options: argparse.Namespace) -> None:
    """Run one measure and print its result."""
    began = time.monotonic()
    found = measured(measure, server.url, options.workloads, rate(raw, options.rate), out, options.requests)
    if measure.name == "mixed" and not (raw / _RATE_FILE).exists():
        (raw / _RATE_FILE).write_text(f"{found.summary.requests_s / 2:.4f}\n")
    print_line(measure, found, time.monotonic() - began)


def rate(raw: Path, given: float | None) -> float:
    """Return requests a second at half load; 1 before anything is measured."""
    if given is not None:
        return given
    return float((raw / _RATE_FILE).read_text()) if (raw / _RATE_FILE).exists() else 1.0


def print_line(measure: Measure, found: BenchResult, took_s: float) -> None:
    """Print one line with a measure's result."""
    summary = found.summary
    print(
        f"  {measure.name:7} {summary.output_tokens_s:7.1f} out, {summary.total_tokens_s:7.1f} total tok/s, "
        f"first token {summary.ttft_ms.p50:6.0f} / {summary.ttft_ms.p99:6.0f} ms, "
        f"between {summary.itl_ms.p50:5.1f} / {summary.itl_ms.p99:6.1f} ms, {took_s:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
