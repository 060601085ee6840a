"""Loads scripts of the repository that belong to no package as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def script(path: str) -> ModuleType:
    """Run the script at a path from the repository's root as a new module and return it."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # What declares classes looks its annotations up there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
