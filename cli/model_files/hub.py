"""Downloads model folders from the Hugging Face hub."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from noria.cli.model_files.progress import ProgressCallback, folder_bytes
from noria.shared.errors import UserError
from noria.shared.model.model_folder import ALIASES

_FILES: Final = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model")
_POLL_S: Final = 0.2


def download_from_hub(name: str, folder: Path, report: ProgressCallback) -> Path:
    """Download a model into `folder`. Raises UserError saying what to do when the hub does not give it."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.utils._paths import filter_repo_objects
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        files = HfApi().model_info(name, files_metadata=True, timeout=15).siblings or []
        sizes = {file.rfilename: file.size or 0 for file in files}
        wanted = list(filter_repo_objects(sizes, allow_patterns=list(_FILES)))
        if not any(file.endswith(".safetensors") for file in wanted):
            raise UserError(f"{name} on the hub holds no safetensors; name a model that does, or a GGUF file")
        with _watched(folder, sum(sizes[file] for file in wanted), report):
            snapshot_download(name, allow_patterns=list(_FILES), local_dir=folder)
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
def _watched(folder: Path, total: int, report: ProgressCallback) -> Iterator[None]:
    """Report the growth of a folder while the body fills it."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            report("download", min(folder_bytes(folder), total), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    report("download", total, total)
