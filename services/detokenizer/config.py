"""What the detokenizer takes from the configuration."""

from pathlib import Path

import msgspec

from noria.shared.config.config import Config
from noria.shared.model.model_folder import resolve_model_folder


class DetokenizerConfig(msgspec.Struct, frozen=True):
    """folder: of the model whose tokenizer is used."""

    folder: Path


def detokenizer_config(config: Config) -> DetokenizerConfig:
    """Raises UserError when the model is not there."""
    return DetokenizerConfig(resolve_model_folder(config.model))
