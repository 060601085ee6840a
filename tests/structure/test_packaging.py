"""The package: every folder is in it, the base install needs two libraries, the tree's tools see the same names."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPED = PROJECT["tool"]["setuptools"]["package-dir"]
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]


def test_the_list_of_packages_is_the_folders() -> None:
    found = {
        ".".join(["noria", *folder.relative_to(ROOT).parts])
        for top in MAPPED.values()
        for folder in [ROOT / top, *(ROOT / top).rglob("*")]
        if folder.is_dir() and any(folder.glob("*.py"))
    }
    assert sorted(found) == PACKAGES


def test_every_package_folder_has_an_init() -> None:
    for package in PACKAGES:
        assert (ROOT.joinpath(*package.split(".")[1:]) / "__init__.py").is_file(), package


def test_type_checkers_see_each_mapped_folder_through_a_link() -> None:
    for package, folder in MAPPED.items():
        link = ROOT / "typings" / "noria" / package.removeprefix("noria.")
        assert link.resolve() == ROOT / folder


def test_every_console_script_leads_somewhere() -> None:
    module, _, name = PROJECT["project"]["scripts"]["noria"].partition(":")
    code = f"import {module}; assert callable({module}.{name})"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_client_imports_nothing_but_pyzmq_and_msgspec() -> None:
    code = """
import importlib.metadata, sys
from importlib.abc import MetaPathFinder

class OnlyBase(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("noria", "zmq", "msgspec") or top.startswith("__editable__"):
            return None
        raise ModuleNotFoundError(f"{name} is not part of the base install", name=name)

sys.meta_path.insert(0, OnlyBase())
import noria.client
import noria.proto.wire
print(*sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert {"noria", "zmq", "msgspec"} <= set(done.stdout.split())


def test_a_built_wheel_holds_every_module_and_no_test() -> None:
    code = f"""
import os, sys
os.chdir({str(ROOT)!r})
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration
distribution = Distribution({{'script_name': 'setup.py'}})
apply_configuration(distribution, "pyproject.toml")
command = distribution.get_command_obj("build_py")
command.ensure_finalized()
print(*(f"{{package}}.{{module}}" for package, module, _ in command.find_all_modules()))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    modules = set(done.stdout.split())
    expected = {
        f"{package}.{file.stem}" for package in PACKAGES for file in ROOT.joinpath(*package.split(".")[1:]).glob("*.py")
    }
    assert modules == expected


def test_a_built_wheel_holds_every_part_of_the_console() -> None:
    code = f"""
import os
os.chdir({str(ROOT)!r})
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration
distribution = Distribution({{'script_name': 'setup.py'}})
apply_configuration(distribution, "pyproject.toml")
command = distribution.get_command_obj("build_py")
command.ensure_finalized()
command.data_files
print(*(f"{{folder}}/{{name}}" for _, folder, _, names in command.data_files for name in names))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    packed = {path.rpartition("/console/")[2] for path in done.stdout.split() if "/console/" in path}
    assert packed == {each.name for each in (ROOT / "services/gateway/monitoring/console").iterdir()} > {"index.html"}


def _install_tree(folder: Path) -> None:
    """A copy of what an install builds the kernels from."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(
        ROOT / "services/executor/cpu/native",
        folder / "services/executor/cpu/native",
        ignore=shutil.ignore_patterns("*.so*", "__pycache__"),
    )


def test_an_install_without_a_compiler_succeeds_without_kernels(tmp_path: Path) -> None:
    _install_tree(tmp_path)
    command = [sys.executable, "-W", "ignore", "setup.py", "build_ext", "--build-lib", "lib", "--build-temp", "temp"]
    environment = {**os.environ, "CXX": "no-such-compiler"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert "no C++ compiler: no-such-compiler" in done.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_an_install_builds_the_kernels_where_they_are_looked_for(tmp_path: Path) -> None:
    _install_tree(tmp_path)
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && : > "$2"; shift; done\n')
    compiler.chmod(0o755)
    command = [sys.executable, "-W", "ignore", "setup.py", "build_ext", "--build-lib", "lib", "--build-temp", "temp"]
    environment = {**os.environ, "CXX": str(compiler)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.so")]
    assert found == ["lib/noria/services/executor/cpu/native/_kernels.so"]
