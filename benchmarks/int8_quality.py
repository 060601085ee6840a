"""What coarser numbers cost a model: `python benchmarks/int8_quality.py [FOLDER [TEXT]]`.

Reads at least 10,000 tokens of English with each way to compute (float32 in plain PyTorch first) and tells, over every
next token: the mean negative log-likelihood and its difference from bfloat16's with the standard error of that
difference, and how often the likeliest token is float32's.

FOLDER is a model folder (the pulled smollm2 where absent). The text is the prose of Python's language reference as every
Python carries it for its help(): paragraphs of whole sentences, without code and tables. No scale in the int8 scheme is
chosen by any text, so that none needs to be held apart; another file may be given as TEXT.
"""

import math
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

import msgspec
import torch
from cache_dtypes import SEQUENCE, STEP, forced, shape_of
from tokenizers import Tokenizer

from noria.services.executor.cpu.engine import CpuEngine
from noria.services.executor.cpu.native.library import Kernels, open_kernels
from noria.services.executor.cpu.native.linear import NativeLinearFactory
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.model.packed_weights import PackedWeights
from noria.services.executor.model.reference_linear import ReferenceLinearFactory
from noria.services.executor.runner.machine import cores
from noria.shared.config.sources import load
from noria.shared.model.model_folder import resolve_model_folder

TOKENS_MIN = 10_000
PARAGRAPH_CHARACTERS_MIN = 200
PROSE_SHARE_MIN = 0.97


class Scores(msgspec.Struct, frozen=True):
    """Of every token that is predicted: the likeliest id, and the log-likelihood of the one that stands there."""

    likeliest: torch.Tensor
    likelihood: torch.Tensor


def prose() -> str:
    """Paragraphs of Python's language reference that are whole sentences."""
    found: dict[str, None] = {}
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            text = " ".join(paragraph.split())
            if len(text) < PARAGRAPH_CHARACTERS_MIN or not text[0].isupper() or not text.endswith("."):
                continue
            if sum(
                each.isalpha() or each in " ,.;'\N{RIGHT SINGLE QUOTATION MARK}-" for each in text
            ) >= PROSE_SHARE_MIN * len(text):
                found[text] = None
    return "\n\n".join(found)


def scores(engine: CpuEngine, windows: list[list[int]]) -> Scores:
    """Read every window from its beginning."""
    likeliest, likelihood = [], []
    for window in windows:
        logits = forced(engine, window)[:-1]
        likeliest.append(logits.argmax(-1))
        standing = logits.gather(1, torch.tensor(window[1:])[:, None])[:, 0]
        likelihood.append(standing.double() - torch.logsumexp(logits, -1))
    return Scores(torch.cat(likeliest), torch.cat(likelihood))


def engine_of(folder: Path, dtype: torch.dtype, kernels: Kernels | None, quantization: str, threads: int) -> CpuEngine:
    """A model that computes as said; plain PyTorch where `kernels` is None."""
    packed = PackedWeights()
    linear_factory = (
        NativeLinearFactory(kernels, dtype, quantization, packed, threads) if kernels else ReferenceLinearFactory(dtype)
    )
    decoder = Decoder(architecture(folder), Checkpoint(folder), dtype, STEP, STEP, linear_factory, packed)
    return CpuEngine(decoder, shape_of(decoder, 1))


def main(arguments: list[str]) -> None:
    """Print a line for each way to compute."""
    folder = Path(arguments[0]) if arguments else resolve_model_folder(load(None).model)
    text = Path(arguments[1]).read_text() if len(arguments) > 1 else prose()
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    windows = [ids[start : start + SEQUENCE] for start in range(0, len(ids) - SEQUENCE + 1, SEQUENCE)]
    count = len(windows) * (SEQUENCE - 1)
    if count < TOKENS_MIN:
        sys.exit(f"the text gives {count} predictions, {TOKENS_MIN} are wanted")
    threads = cores()
    torch.set_num_threads(threads)
    print(f"{folder.name}: {len(ids)} tokens, {count} predictions in windows of {SEQUENCE} tokens", flush=True)
    exact = scores(engine_of(folder, torch.float32, None, "none", threads), windows)
    _tell("float32, plain PyTorch", exact, exact, None)
    kernels = open_kernels()
    base = scores(engine_of(folder, torch.bfloat16, kernels, "none", threads), windows)
    _tell("bfloat16", base, exact, base)
    _tell("int8", scores(engine_of(folder, torch.bfloat16, kernels, "int8", threads), windows), exact, base)


def _tell(name: str, found: Scores, exact: Scores, base: Scores | None) -> None:
    mean = -float(found.likelihood.mean())
    same = float((found.likeliest == exact.likeliest).double().mean())
    line = f"{name:24} NLL {mean:.5f}, float32's likeliest token {same:7.2%}"
    if base is not None:
        more, reference = base.likelihood - found.likelihood, -float(base.likelihood.mean())
        error = float(more.std()) / math.sqrt(len(more))
        line += f", NLL {float(more.mean()) / reference:+.3%} +- {error / reference:.3%} of bfloat16's"
    print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
