"""The Triton kernels compile for GPUs, none of which need be there: what the interpreter runs, a compiler may refuse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def compiled(folder: Path, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder), "PYTHONPATH": path}
    command = [sys.executable, "-m", "executor.numerics.compiling", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_each_kernel_compiles_for_nvidia(tmp_path: Path) -> None:
    assert compiled(tmp_path, "cuda:90", "--once") == "cuda:90 9\n"


@pytest.mark.slow
def test_all_shapes_compile_for_nvidia_and_amd(tmp_path: Path) -> None:
    targets = ("cuda:90", "hip:gfx942")
    assert compiled(tmp_path, *targets) == "".join(f"{each} 20\n" for each in targets)
