"""What the numeric tests compare with: prompts, and transformers' greedy answers to them."""

from pathlib import Path

import msgspec
import torch

from noria.services.executor.cpu.native.library import levels, open_kernels
from noria.services.executor.cpu.native.linear import NativeLinearFactory
from noria.services.executor.model.architecture import architecture
from noria.services.executor.model.checkpoint import Checkpoint
from noria.services.executor.model.decoder import Decoder
from noria.services.executor.model.packed_weights import PackedWeights
from noria.shared.config.sources import load

NEW_TOKENS = 8
LEVELS = levels()
"""Levels of native kernels to test, the least first: those that run here, up to the one that is configured."""
if (configured := load(None).executor.kernels) in LEVELS:
    LEVELS = LEVELS[: LEVELS.index(configured) + 1]
LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 255, 256, 257, 300, 511, 700, 900)
TEXT = (
    "A water wheel of this kind lifts water from a river into a channel above it. Its buckets fill below, travel up, "
    "empty themselves near the top and come down again while the wheel keeps turning. Nobody has to stop it so that "
    "another bucket can be hung on or taken off. In 1837 a traveller counted 24 of them between two villages; the "
    "largest had a diameter of 21 metres. What is 3 + 4? Write a short story about a fox, then list five colours. "
)


class Expected(msgspec.Struct, frozen=True):
    """What transformers' generate gives: greedy ids, and the logits each was chosen from."""

    ids: list[int]
    logits: list[torch.Tensor]

    def certain(self) -> int:
        """How many leading ids were chosen by more than the numerical error."""
        for count, row in enumerate(self.logits):
            first, second = row.topk(2).values.tolist()
            if first - second <= 1e-4:
                return count
        return len(self.ids)


def expect(model: "object", prompts: list[tuple[int, ...]], new_tokens: int) -> list[Expected]:
    found = []
    for prompt in prompts:
        with torch.inference_mode():
            out = model.generate(  # type: ignore[attr-defined]
                torch.tensor([prompt]),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                pad_token_id=0,
                eos_token_id=None,
            )
        ids = out.sequences[0, len(prompt) :].tolist()
        found.append(Expected(ids, [row[0].float().clone() for row in out.logits]))
    return found


def decoder_of(
    folder: Path, dtype: torch.dtype, level: str = "", quantization: str = "none", threads: int = 1
) -> Decoder:
    """A model for steps of 512 query tokens and 32 sampled rows, by kernels of a level or plain PyTorch."""
    linear_factory = None
    if level:
        linear_factory = NativeLinearFactory(open_kernels(level), dtype, quantization, PackedWeights(), threads)
    return Decoder(architecture(folder), Checkpoint(folder), dtype, 512, 32, linear_factory)


class Reference:
    """transformers' answers to prompts by index, each computed when it is first asked for."""

    def __init__(
        self,
        folder: Path,
        prompts: list[tuple[int, ...]],
        dtype: torch.dtype = torch.float32,
        new_tokens: int = NEW_TOKENS,
    ) -> None:
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype)
        self._prompts = prompts
        self._new_tokens = new_tokens
        self._found: dict[int, Expected] = {}

    def __getitem__(self, index: int) -> Expected:
        if index not in self._found:
            (self._found[index],) = expect(self._model, [self._prompts[index]], self._new_tokens)
        return self._found[index]
