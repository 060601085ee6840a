"""From a GGUF file to an ordinary model folder."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from noria.cli.model_files.gguf_blocks import keep_blocks
from noria.cli.model_files.progress import Report
from noria.shared.errors import UserError


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
