"""The part of the build that pyproject.toml cannot say: the executor's kernels, which are optional.

Without a C++ compiler the install succeeds and the executor computes in plain PyTorch. See services/executor/cpu/native.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FOLDER = Path("services/executor/cpu/native")
NAME = "noria.services.executor.cpu.native._kernels"


def _builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("noria_kernels_build", FOLDER / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildKernels(build_ext):
    """Builds the kernels with their own build.py. They are no extension module: ctypes loads them."""

    def get_ext_filename(self, fullname: str) -> str:
        """The plain name of a library."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        """Build the library; a CompileError of an optional extension is told and passed over."""
        builder = _builder()
        try:
            builder.build(Path(self.get_ext_fullpath(ext.name)), Path(self.build_temp) / "kernels")
        except builder.BuildError as error:
            raise CompileError(
                f"the kernels are not built, the executor will compute in plain PyTorch: {error}"
            ) from error


sources = sorted(str(path) for path in FOLDER.glob("*.cpp"))
depends = sorted(str(path) for path in FOLDER.glob("*.h"))
setup(
    ext_modules=[Extension(NAME, sources, depends=depends, optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
