"""Sampling by the native kernels: the choices of cpu/reference_sampling.py in a fraction of a millisecond."""

import ctypes
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from noria.services.executor.cpu.native.library import Kernels
from noria.services.executor.plan.sampling_metadata import SamplerOutput, SamplingMetadata, wanted_logprobs

_POINTERS: Final = (
    "parameters",
    "positions",
    "history",
    "history_starts",
    "prompts",
    "bias_ids",
    "bias_values",
    "bias_starts",
)


class _SamplerArguments(ctypes.Structure):
    """NoriaSampler of api.h."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("vocabulary", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("ids", ctypes.c_void_p),
        ("logprobs", ctypes.c_void_p),
        ("top_ids", ctypes.c_void_p),
        ("top_logprobs", ctypes.c_void_p),
        ("top", ctypes.c_int64),
    )


class NativeSampling:
    """Samples rows of one vocabulary on some threads."""

    def __init__(self, kernels: Kernels, vocabulary: int, threads: int) -> None:
        self._kernels = kernels
        self._threads = threads
        self._scratch = np.zeros(threads * kernels.sample_scratch_bytes(vocabulary), np.uint8)

    def sample(self, logits: torch.Tensor, sampler: SamplingMetadata) -> SamplerOutput:
        """Sample one token per row of float32 logits [rows, vocabulary], which are overwritten."""
        assert logits.is_contiguous() and logits.dtype == torch.float32
        rows, vocabulary = logits.shape
        most = wanted_logprobs(sampler)
        with_logprobs, top = (rows if most >= 0 else 0), max(most, 0)
        drawn = SamplerOutput(
            np.empty(rows, np.int64),
            np.zeros(with_logprobs, np.float32),
            np.zeros((with_logprobs, top), np.int32),
            np.zeros((with_logprobs, top), np.float32),
        )
        arguments = _SamplerArguments(
            logits.data_ptr(),
            rows,
            vocabulary,
            *(_pointer(getattr(sampler, name)) for name in _POINTERS),
            *(_pointer(each) for each in (drawn.ids, drawn.logprobs, drawn.top_ids, drawn.top_logprobs)),
            top,
        )
        self._kernels.sample(ctypes.addressof(arguments), _pointer(self._scratch), self._threads)
        return drawn


def _pointer(array: NDArray[np.generic]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
