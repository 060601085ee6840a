"""Makes a folder's model: our own decoder where it knows the family, else one that transformers computes."""

from pathlib import Path

import msgspec
import torch

from noria.services.executor.config import ExecutorConfig
from noria.services.executor.cpu.backend import Computing
from noria.services.executor.model.architecture import Architecture, UnknownDecoderError, architecture
from noria.services.executor.model.causal_lm import Model
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.model.packed_weights import PackedWeights
from noria.shared.errors import UserError


class Made(msgspec.Struct, frozen=True):
    """A model. name: what computes it, for a person. unkept: why packed weights could not be kept, or nothing.

    hosted: transformers computes it.
    """

    model: Model
    name: str
    unkept: str
    hosted: bool


def make_model(
    config: ExecutorConfig, folder: Path, dtype: torch.dtype, context: int, computing: Computing, threads: int
) -> Made:
    """Load the model for requests of at most `context` tokens. Raises UserError saying why it cannot be served."""
    try:
        family = architecture(folder)
    except UnknownDecoderError as unknown:
        return _hosted(config, folder, dtype, context, computing, threads, unknown)
    return _own(config, folder, dtype, family, computing, threads)


def _own(
    config: ExecutorConfig, folder: Path, dtype: torch.dtype, family: Architecture, computing: Computing, threads: int
) -> Made:
    def made() -> tuple[Decoder, PackedWeights]:
        products, packed = computing.products(config, folder, dtype, threads)
        rows_max, samples_max = config.max_batch_tokens, config.max_slots
        return Decoder(family, Checkpoint(folder), dtype, rows_max, samples_max, products, packed), packed

    decoder, packed = made()
    unkept = packed.keep()
    if packed.written:
        # Mapped, all weights of a 135M model were read in 9.8 ms, from memory as it is allocated in 14.2.
        decoder, _ = made()
    return Made(decoder, computing.name, unkept, hosted=False)


def _hosted(
    config: ExecutorConfig,
    folder: Path,
    dtype: torch.dtype,
    context: int,
    computing: Computing,
    threads: int,
    unknown: UnknownDecoderError,
) -> Made:
    # Importing transformers takes seconds, which models of our own families need not wait for.
    from noria.services.executor.cpu.hosted_trial import tolerance, trial_prompts, verify
    from noria.services.executor.hf.hosted_model import Wanted, open_network

    wanted = Wanted(folder, dtype, config.max_batch_tokens, config.max_slots, context)
    try:
        opened = open_network(wanted)
        prompts = trial_prompts(opened.architecture.vocabulary, context)
        expected = [opened.plain(prompt) for prompt in prompts]
        products, packed = computing.products(config, folder, dtype, threads)
        model = opened.hosted(wanted, products)
        unkept = packed.keep()
        verify(model, prompts, expected, tolerance(dtype, config.quantization))
    except UserError as error:
        raise UserError(f"{unknown}; transformers cannot compute it here either: {error}") from error
    return Made(model, f"transformers ({model.architecture.family}) over {computing.name}", unkept, hosted=True)
