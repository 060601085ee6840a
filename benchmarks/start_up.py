"""Measures how soon the stack is ready, and the memory of its processes at start and after a burst of requests.

    python benchmarks/start_up.py [--model smollm2] [--repeats 3] [--concurrency 32] [--requests 64] [more flags of `noria up`]

Memory is the proportional set size: pages that processes share, such as mapped weights and libraries, count once among
all of them. The first start of a model packs weights and measures steps; the later ones are those with a warm cache.
"""

import argparse
import contextlib
import http.client
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

_HOST, _PORT = "127.0.0.1", 8497
_READY_S_MAX = 180.0
_POLL_S = 0.01
_MIB = 1 << 20


class Process(msgspec.Struct):
    """The part of one process's state in `/debug/state` that is needed here."""

    pid: int
    garbage: dict[str, int] = {}


def main() -> int:
    """Start, measure, stop; print a line for each start and a table for the last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--requests", type=int, default=64)
    wanted, flags = parser.parse_known_args()
    starts = []
    for number in range(wanted.repeats):
        with _stack(wanted.model, flags) as ready_s:
            starts.append(ready_s)
            before = _memory()
            print(f"start {number + 1}: ready after {ready_s:.2f} s, {sum(before.values()) / _MIB:.0f} MiB", flush=True)
            if number + 1 == wanted.repeats:
                _burst(wanted.requests, wanted.concurrency)
                _table(before, _memory())
    print(f"ready after {statistics.median(starts):.2f} s (median; {min(starts):.2f} to {max(starts):.2f})")
    return 0


@contextlib.contextmanager
def _stack(model: str, flags: list[str]) -> Iterator[float]:
    """Run a stack; yields the seconds from its first instruction until it was ready."""
    with tempfile.TemporaryDirectory(prefix="noria-start-") as folder:
        command = [sys.executable, "-c", "import sys; from noria.cli import main; sys.exit(main())", "up"]
        command += ["--model", model, "--http", f"{_HOST}:{_PORT}", "--runtime-dir", folder, "--log-level", "warning"]
        began_s = time.monotonic()
        process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL)
        try:
            while _get("/ready") is None:
                if process.poll() is not None or time.monotonic() - began_s > _READY_S_MAX:
                    raise SystemExit("the stack did not become ready")
                time.sleep(_POLL_S)
            yield time.monotonic() - began_s
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _get(path: str) -> bytes | None:
    connection = http.client.HTTPConnection(_HOST, _PORT, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except OSError:
        return None
    finally:
        connection.close()
    return body if answer.status == http.client.OK else None


def _processes() -> dict[str, Process]:
    body = _get("/debug/state")
    if body is None:
        raise SystemExit("the stack does not say what it consists of")
    found = msgspec.json.decode(body, type=dict[str, Process | None])
    return {name: process for name, process in found.items() if process is not None}


def _memory() -> dict[str, int]:
    """Return the memory of each process in bytes."""
    return {name: _proportional_bytes(process.pid) for name, process in _processes().items()}


def _proportional_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc says nothing of proportional set sizes")


def _burst(requests: int, concurrency: int) -> None:
    command = [sys.executable, "-c", "import sys; from noria.cli import main; sys.exit(main())", "bench"]
    command += ["--url", f"http://{_HOST}:{_PORT}", "--requests", str(requests), "--concurrency", str(concurrency)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _table(before: Mapping[str, int], after: Mapping[str, int]) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    print(f"{'':<14}{'MiB ready':>10}{'MiB burst':>10}{'CPU s':>8}{'collections':>13}{'ms':>7}{'longest ms':>12}")
    for name, process in _processes().items():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / ticks
        garbage = process.garbage
        print(
            f"{name:<14}{before[name] / _MIB:>10.0f}{after[name] / _MIB:>10.0f}{cpu_s:>8.2f}{garbage.get('collections', 0):>13}"
            f"{garbage.get('total_us', 0) / 1000:>7.1f}{garbage.get('longest_us', 0) / 1000:>12.1f}"
        )
    print(f"{'all':<14}{sum(before.values()) / _MIB:>10.0f}{sum(after.values()) / _MIB:>10.0f}")


if __name__ == "__main__":
    sys.exit(main())
