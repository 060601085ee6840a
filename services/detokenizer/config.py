"""The detokenizer's part of the configuration."""

from pathlib import Path

import msgspec

from noria.shared.config.config import Config
from noria.shared.model.model_folder import resolve_model_folder


class DetokenizerConfig(msgspec.Struct, frozen=True):
    """The detokenizer's configuration. folder: of the model whose tokenizer is used."""

    folder: Path


def detokenizer_config(config: Config) -> DetokenizerConfig:
    """Build the detokenizer's configuration. Raises UserError when the model cannot be found."""
    return DetokenizerConfig(resolve_model_folder(config.model))
