"""Builds the kernels: `python services/executor/cpu/native/build.py` builds them in place; setup.py calls the same code.

Every source but dispatch.cpp is compiled once for each level. Objects are kept by the digest of what they are made of,
so that a change costs its own files only. Stands alone: setup.py loads it before anything is installed.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
LIBRARY: Final = "_kernels.so"
FLAGS: Final = (
    "-std=c++17",
    "-O3",
    # Results must not depend on how a compiler regroups sums: no -ffast-math, no contraction but where the source asks.
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-ignored-attributes",
    "-Wno-psabi",
    # gcc 12 warns of its own intrinsics' undefined operands.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
)
LEVELS: Final = {
    "portable": (),
    "avx2": ("-DNORIA_AVX2", "-march=x86-64-v3"),
    "avx512": (
        "-DNORIA_AVX512",
        "-march=x86-64-v4",
        "-mavx512vnni",
        "-mavx512bf16",
        "-mprefer-vector-width=512",
    ),
}
"""Flags of each level, the least first; all but the first are for x86-64 alone."""


class BuildError(Exception):
    """The kernels cannot be built here; the message says why."""


def digest() -> str:
    """A digest of the sources; a library built from others is not used."""
    found = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.h"), *FOLDER.glob("*.cpp"), FOLDER / "build.py"]):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def build(target: Path, objects: Path | None = None) -> None:
    """Compile and link the library `target`; `objects` keeps what was compiled. Raises BuildError."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    x86 = platform.machine() in ("x86_64", "AMD64")
    levels = LEVELS if x86 else {"portable": ()}
    units: list[tuple[Path, tuple[str, ...]]] = [
        (source, (f"-DNORIA_LEVEL={level}", *flags))
        for level, flags in reversed(levels.items())
        for source in sorted(FOLDER.glob("*.cpp"))
        if source.name != "dispatch.cpp"
    ]
    units.append((FOLDER / "dispatch.cpp", (f'-DNORIA_DIGEST="{digest()}"', *(("-DNORIA_X86",) if x86 else ()))))
    with tempfile.TemporaryDirectory() as scratch:
        folder = objects or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            made = list(pool.map(lambda unit: _compiled(compiler, unit[0], unit[1], folder), units))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Into place at once: a process that runs the old library keeps it.
        linked = target.with_name(f"{target.name}.{os.getpid()}")
        _run([*compiler, "-shared", "-fopenmp", *map(str, made), "-o", str(linked)])
        linked.replace(target)


def _compiled(compiler: list[str], source: Path, flags: tuple[str, ...], folder: Path) -> Path:
    command = [*compiler, *FLAGS, *flags]
    content = hashlib.sha256(repr(command).encode())
    for path in [source, *sorted(FOLDER.glob("*.h"))]:
        content.update(path.read_bytes())
    made = folder / f"{source.stem}-{content.hexdigest()[:20]}.o"
    if not made.exists():
        written = made.with_suffix(f".{os.getpid()}.part")
        _run([*command, "-c", str(source), "-o", str(written)])
        written.replace(made)
    return made


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the compiler
    except OSError as error:
        raise BuildError(f"no C++ compiler: {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr[-4000:]}")
    sys.stderr.write(done.stderr)


def main() -> int:
    """Build in place, from a source tree or where noria is installed."""
    tree = FOLDER.parents[3]
    try:
        build(FOLDER / LIBRARY, tree / "build" / "kernels" if (tree / "pyproject.toml").exists() else None)
    except BuildError as error:
        sys.stderr.write(f"the kernels are not built, the executor will compute in plain PyTorch: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
