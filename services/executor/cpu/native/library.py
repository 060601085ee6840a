"""Loads the library of native kernels, chooses a level, and binds each function with ctypes.

A level is a set of instructions that the kernels are compiled for: portable, avx2 or avx512. Functions take addresses
and sizes and check nothing; what they mean is said in api.h.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Final

# Before the kernels, so that both share the OpenMP pool of the libgomp that torch brings.
import torch

from noria.services.executor.cpu.native.build import FOLDER, LEVELS, LIBRARY, digest

Kernel = Callable[..., None]

_POINTER: Final = ctypes.c_void_p
_SIZE: Final = ctypes.c_int64
_REAL: Final = ctypes.c_double


class KernelsUnavailableError(Exception):
    """There are no kernels, or not of the level asked for; the message says why."""


class LinearArguments(ctypes.Structure):
    """NoriaLinear of api.h."""

    _fields_ = (
        ("weights", _POINTER),
        ("bias", _POINTER),
        ("outputs", _SIZE),
        ("inputs", _SIZE),
        ("type", _SIZE),
        ("input_type", _SIZE),
    )


class SlicesArguments(ctypes.Structure):
    """NoriaSlices of api.h."""

    _fields_ = (("starts", _POINTER), ("lengths", _POINTER), ("rows", _POINTER), ("count", _SIZE))


class PagesArguments(ctypes.Structure):
    """NoriaPages of api.h."""

    _fields_ = (
        ("table", _POINTER),
        ("entries", _SIZE),
        ("ring", _SIZE),
        ("window", _SIZE),
        ("write_slots", _POINTER),
        ("plan", _POINTER),
    )


class CacheArguments(ctypes.Structure):
    """NoriaCache of api.h."""

    _fields_ = (
        ("keys", _POINTER),
        ("values", _POINTER),
        ("page_bytes", _SIZE),
        ("page_size", _SIZE),
        ("kv_heads", _SIZE),
        ("head_dim", _SIZE),
        ("type", _SIZE),
        ("tiled", _SIZE),
    )


class AttentionHeadsArguments(ctypes.Structure):
    """NoriaHeads of api.h."""

    _fields_ = (("heads", _SIZE), ("type", _SIZE), ("scale", _REAL), ("cap", _REAL))


class LayerArguments(ctypes.Structure):
    """NoriaLayer of api.h."""

    _fields_ = (
        ("input_norm", _POINTER),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("after_attention", _POINTER),
        ("mlp_norm", _POINTER),
        ("after_mlp", _POINTER),
        ("qkv", _POINTER),
        ("out", _POINTER),
        ("gate_up", _POINTER),
        ("down", _POINTER),
        ("heads", _POINTER),
        ("cache", _POINTER),
        ("rotations", _POINTER),
        ("group", _SIZE),
        ("gelu", _SIZE),
        ("epsilon", _REAL),
    )


class StepArguments(ctypes.Structure):
    """NoriaStep of api.h."""

    _fields_ = (
        ("rows", _SIZE),
        ("positions", _POINTER),
        ("slices", _POINTER),
        ("pages", _POINTER),
        ("residual", _POINTER),
        ("added", _POINTER),
        ("products", _POINTER),
        ("normed", _POINTER),
        ("queries", _POINTER),
        ("attended", _POINTER),
        ("gated", _POINTER),
        ("attention_scratch", _POINTER),
        ("product_scratch", _POINTER),
        ("wanted", _POINTER),
        ("wanted_rows", _SIZE),
    )


class Kernels:
    """The functions of one level. Each releases the interpreter while it runs."""

    def __init__(self, library: ctypes.CDLL, level: str) -> None:
        self.level = level

        def bound(name: str, *arguments: object) -> Kernel:
            function: Kernel = getattr(library, f"noria_{level}_{name}")
            function.argtypes, function.restype = arguments, None  # type: ignore[attr-defined]  # a ctypes function
            return function

        self.linear = bound("linear", _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _POINTER, _SIZE)
        self.pack = bound("pack", _POINTER, _POINTER, *[_SIZE] * 4)
        self.embed = bound("embed", _POINTER, _SIZE, _POINTER, _REAL, _POINTER, _SIZE, _SIZE, _SIZE)
        self.add_norm = bound(
            "add_norm", _POINTER, _POINTER, _POINTER, _REAL, _POINTER, _POINTER, _SIZE, _SIZE, _SIZE, _SIZE
        )
        self.norm = bound("norm", _POINTER, _POINTER, _REAL, _SIZE, _SIZE, _SIZE)
        self.rotate_write = bound("rotate_write", *[_POINTER] * 8, _REAL, _POINTER, _SIZE, _SIZE)
        self.attention = bound("attention", *[_POINTER] * 7, _SIZE)
        self.layers = bound("layers", _POINTER, _SIZE, _POINTER, _POINTER, _SIZE)
        self.gated = bound("gated", _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _SIZE, _SIZE)
        self._attention_plan = getattr(library, f"noria_{level}_attention_plan")
        self._attention_plan.argtypes, self._attention_plan.restype = (*[_POINTER] * 4, _SIZE), _SIZE
        self.sample = bound("sample", _POINTER, _POINTER, _SIZE)
        self._sample_scratch_bytes = getattr(library, f"noria_{level}_sample_scratch_bytes")
        self._sample_scratch_bytes.argtypes, self._sample_scratch_bytes.restype = (_SIZE,), _SIZE

    def attention_plan(self, heads: int, cache: int, slices: int, pages: int, threads: int) -> int:
        """Bytes of a plan, or make it where the pages say and return bytes of scratch; all but threads are addresses."""
        return int(self._attention_plan(heads, cache, slices, pages, threads))

    def sample_scratch_bytes(self, vocabulary: int) -> int:
        """What `sample` needs for each row that it works on at once."""
        return int(self._sample_scratch_bytes(vocabulary))


def open_kernels(level: str = "auto") -> Kernels:
    """The kernels of a level; auto is the best that this processor runs. Raises KernelsUnavailableError."""
    library = _library()
    runs = [each for each in LEVELS if library.noria_runs(each.encode())]
    if level != "auto" and level not in runs:
        raise KernelsUnavailableError(f"this processor does not run {level} kernels, only {', '.join(runs)}")
    return Kernels(library, runs[-1] if level == "auto" else level)


def levels() -> list[str]:
    """The levels that run here, the least first; none without kernels."""
    try:
        library = _library()
    except KernelsUnavailableError:
        return []
    return [each for each in LEVELS if library.noria_runs(each.encode())]


def checksum(array: torch.Tensor) -> int:
    """A 64-bit checksum of a dense uint8 tensor; no protection against intent."""
    assert array.dtype == torch.uint8 and array.is_contiguous()
    return int(_library().noria_checksum(array.data_ptr(), array.numel()))


@functools.cache
def _library() -> ctypes.CDLL:
    path = FOLDER / LIBRARY
    if not path.exists():
        raise KernelsUnavailableError(
            "the kernels were not built when noria was installed; with a C++ compiler, "
            "`python -m noria.services.executor.cpu.native.build` builds them"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailableError(f"the kernels cannot be loaded: {error}") from error
    library.noria_digest.restype = ctypes.c_char_p
    library.noria_checksum.argtypes, library.noria_checksum.restype = (_POINTER, _SIZE), ctypes.c_uint64
    if library.noria_digest() != digest().encode():
        raise KernelsUnavailableError(
            "the kernels were built from other sources; `python -m noria.services.executor.cpu.native.build` builds them again"
        )
    return library
