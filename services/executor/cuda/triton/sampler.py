"""Sampling on a device by Triton kernels: the tokens that cpu/reference_sampling.py would choose."""

from typing import Final

import torch

from noria.services.executor.cuda.device.recent_tokens import DeviceRecentTokens
from noria.services.executor.cuda.device.step_inputs import SamplingInputs, StepInputs
from noria.services.executor.cuda.device.step_outputs import StepOutputs
from noria.services.executor.cuda.layout.step_layout import OUTPUT, PROMPT
from noria.services.executor.cuda.triton.penalty_kernels import penalise
from noria.services.executor.cuda.triton.sampling_kernels import choose, write_logprobs
from noria.services.executor.plan.sampling_metadata import RECENT_TOKENS

_BLOCK: Final = 4096
_WARPS: Final = 16


class TritonSampler:
    """Samples tokens and keeps them for their slots."""

    def __init__(self, vocabulary: int, slots: DeviceRecentTokens) -> None:
        self._vocabulary = vocabulary
        self._block = min(_BLOCK, 1 << (vocabulary - 1).bit_length())
        self._slots = slots

    def sample(self, logits: torch.Tensor, step: StepInputs, out: StepOutputs) -> None:
        """Queue the choice of one token per row of float32 logits [rows, vocabulary], which may be overwritten."""
        sizes, sampled = step.sizes, step.sampled
        if not sizes.samples:
            return
        adjusted = logits
        if sizes.counted or sizes.biases:
            adjusted = logits.clone() if sizes.logprobs >= 0 else logits
            self._adjust(adjusted, step)
        choose[(sizes.samples,)](
            adjusted,
            sampled.scale,
            sampled.top_k,
            sampled.top_p,
            sampled.least,
            sampled.seed,
            sampled.positions,
            sampled.slots,
            out.ids,
            self._slots.last,
            self._slots.recent,
            VOCABULARY=self._vocabulary,
            RECENT=RECENT_TOKENS,
            BLOCK=self._block,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
        if sizes.logprobs >= 0:
            write_logprobs[(sizes.samples,)](
                logits,
                out.ids,
                sampled.logprobs,
                out.logprobs,
                out.top_ids,
                out.top_logprobs,
                sizes.logprobs,
                VOCABULARY=self._vocabulary,
                BLOCK=self._block,
                num_warps=_WARPS,
                enable_fp_fusion=False,
            )

    def _adjust(self, logits: torch.Tensor, step: StepInputs) -> None:
        sizes, sampled, infinity = step.sizes, step.sampled, float("inf")
        parts = -(-self._vocabulary // self._block)
        torch.nan_to_num(logits, nan=-infinity, posinf=torch.finfo(torch.float32).max, neginf=-infinity, out=logits)
        if sizes.biases:
            places = sampled.bias_rows.long() * self._vocabulary + sampled.bias_ids
            logits.view(-1).index_add_(0, places, sampled.bias_values)
        if sizes.counted:
            seen, counts = self._counts(sampled, sizes.counted)
            penalise[(sizes.counted, parts)](
                logits,
                sampled.counted,
                seen,
                counts,
                sampled.repetition,
                sampled.frequency,
                sampled.presence,
                VOCABULARY=self._vocabulary,
                BLOCK=self._block,
                enable_fp_fusion=False,
            )

    def _counts(self, sampled: SamplingInputs, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """By row with penalties and id: whether its prompt has it, and how often its output does; one place more for padding."""
        history, kinds, nowhere = self._slots.history(sampled), sampled.history_kinds, rows * self._vocabulary
        places = sampled.history_rows.long() * self._vocabulary + history
        seen = torch.zeros(nowhere + 1, dtype=torch.int8, device=history.device)
        seen.index_fill_(0, torch.where(kinds == PROMPT, places, nowhere), 1)
        counts = torch.zeros(nowhere + 1, dtype=torch.int32, device=history.device)
        counts.index_add_(0, torch.where(kinds == OUTPUT, places, nowhere), torch.ones_like(kinds))
        return seen, counts
