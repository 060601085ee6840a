"""The executor, its GPU lane included, is imported and chooses what computes without Triton and what goes with it."""

import subprocess
import sys


def test_the_executor_does_without_triton() -> None:
    code = """
import sys
from importlib.abc import MetaPathFinder

class Without(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "flashinfer", "torchao"):
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
        return None

sys.meta_path.insert(0, Without())
import noria.services.executor.make_runner
import noria.services.executor.cuda.backend
import noria.services.executor.cuda.cuda_runner
import noria.services.executor.cuda.layers.linear
print("imported")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr[-2000:]
