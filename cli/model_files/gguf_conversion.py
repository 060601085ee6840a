"""Converts a GGUF file to an ordinary model folder."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from noria.cli.model_files.gguf_blocks import keep_blocks
from noria.cli.model_files.gguf_header import read_gguf
from noria.cli.model_files.gguf_tensors import check_described, check_gguf
from noria.cli.model_files.progress import ProgressCallback
from noria.shared.errors import UserError
from noria.shared.model.weight_files import SINGLE, check_loaded, check_tensors, first_line, read_tensors

if TYPE_CHECKING:
    import torch


def convert(gguf: Path, folder: Path, report: ProgressCallback) -> Path:
    """Write a GGUF file as an ordinary model folder: float32 safetensors, config, tokenizer, chat template.

    Float32 because the dequantised values are the model's definition here; rounding belongs to whoever loads it. Blocks
    that int8 kernels can use unchanged are kept beside it. Tensors that the model does not use are named on standard error.
    Raises UserError when the file is damaged, lacks a tensor, or is of a kind that transformers cannot read.
    """
    header = read_gguf(gguf)
    check_described(gguf, header)
    report("convert", 0, 0)
    with _silent_transformers():
        try:
            config = _config(gguf)
            unused = check_gguf(gguf, header, _needed(config))
            model, tokenizer = _read(gguf, config)
        except UserError:
            raise
        except Exception as error:  # whatever an unknown file makes the readers raise, the answer is the same
            raise UserError(
                f"cannot read {gguf} as a GGUF model: {type(error).__name__}: {first_line(error)}; choose another"
            ) from error
        if unused:
            click.echo(f"warning: {len(unused)} tensors of {gguf} are not used: {', '.join(unused)}", err=True)
        _write(gguf, model, tokenizer, folder, report)
    return folder


def _config(gguf: Path) -> Any:
    """Return the config that the file's metadata describe. Read once: a large vocabulary takes 20 s."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)


def _needed(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of the model that a config describes, by transformers' names. Takes no memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # A weight under two names, as a head that is the embedding, comes once.
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def _read(gguf: Path, config: Any) -> tuple[Any, Any]:
    """Return the model in float32 and its tokenizer. Raises UserError for missing weights, and what transformers raises."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, file = str(gguf.parent), gguf.name
    model, found = AutoModelForCausalLM.from_pretrained(
        place,
        config=config,
        gguf_file=file,
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused below, by name
    )
    check_loaded(str(gguf), found)
    return model, AutoTokenizer.from_pretrained(place, gguf_file=file)


def _write(gguf: Path, model: Any, tokenizer: Any, folder: Path, report: ProgressCallback) -> None:
    """Write the folder and check that its weights are complete. Raises UserError when it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # save_pretrained refuses a model it believes is still quantised, hence the parts one by one.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    weights: dict[str, torch.Tensor] = {name: each.contiguous() for name, each in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    total = sum(tensor.nbytes for tensor in weights.values())
    report("convert", 0, total)
    heads = {getattr(config, name, None) or 0 for name in ("num_attention_heads", "num_key_value_heads")}
    try:
        folder.mkdir()
        save_file(weights, str(folder / SINGLE), {"format": "pt"})
        keep_blocks(gguf, folder, {name: tensor.numpy() for name, tensor in weights.items()}, tuple(sorted(heads)))
        config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot write the model that {gguf} becomes into {folder.parent.parent}: {first_line(error)}; it takes "
            f"{total >> 20} MiB and more: make room, or name another folder with --model-cache-dir"
        ) from error
    written = {name: tensor.shape for name, tensor in read_tensors(folder).items()}
    check_tensors(str(folder), {name: tuple(tensor.shape) for name, tensor in weights.items()}, written)
    report("convert", total, total)


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
