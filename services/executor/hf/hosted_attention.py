"""The attention function that transformers' models call, and how it is handed to ours.

transformers' models call a named attention function layer by layer. Ours hands each call to whoever runs the model in
this context: an Observer once, to learn what the layers are; then the model's steps, over the paged cache.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

import msgspec
import torch
from transformers import AttentionInterface, AttentionMaskInterface

from noria.shared.errors import UserError

NAME: Final = "noria"
"""What our attention is called; transformers builds no masks for it, since none are registered under the name."""

OBSERVING: Final = "noria_observing"
"""The same with masks that tell what they hide."""

_HARMLESS: Final = ("position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens")
_MASK_PROBES: Final = 16


class AttentionCall(msgspec.Struct, frozen=True):
    """One call of a layer: queries [1, heads, T, d], keys and values [1, kv heads, T, d], mask and options of transformers."""

    module: torch.nn.Module
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None
    options: Mapping[str, object]


Attend = Callable[[AttentionCall], torch.Tensor]
"""Answers a call with [1, T, heads, d]."""


class MaskFunction(Protocol):
    """transformers' mask functions: whether a query at a position sees a key, by broadcast indices."""

    def __call__(self, batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Return booleans."""


_attending: ContextVar[Attend] = ContextVar("attending")
_observer: ContextVar["AttentionSpecRecorder"] = ContextVar("observer")


class AttentionLayerSpec(msgspec.Struct, frozen=True):
    """The attention parameters of one layer. window: tokens seen, itself included, 0 is all; cap: as in `Architecture`."""

    module: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    cap: float | None


class AttentionSpecRecorder:
    """Stands in for attention in a trial forward pass: records each layer's parameters and returns zeros.

    Raises UserError naming what the paged attention does not know.
    """

    def __init__(self, context: int) -> None:
        self.layers: list[AttentionLayerSpec] = []
        self._context = context
        self._masks: list[MaskFunction] = []

    def mask(self, visible: MaskFunction, queries: int, keys: int) -> torch.Tensor:
        """A mask whose numbers encode which one it is, so that a layer's call shows what the layer sees."""
        self._masks.append(visible)
        return torch.full((1, 1, queries, keys), len(self._masks) - 1.0)

    def __call__(self, asked: AttentionCall) -> torch.Tensor:
        """Note a call."""
        queries, keys, values, options = asked.queries, asked.keys, asked.values, asked.options
        _check_sizes(queries, keys, values)
        for name, value in options.items():
            if name == "s_aux" and value is not None:
                raise UserError("its attention has sinks")
            if isinstance(value, torch.Tensor) and name not in _HARMLESS:
                raise UserError(f"its attention takes {name!r}")
        scale, cap = options.get("scaling"), options.get("softcap")
        head_dim = queries.shape[3]
        self.layers.append(
            AttentionLayerSpec(
                module=id(asked.module),
                heads=queries.shape[1],
                kv_heads=keys.shape[1],
                head_dim=head_dim,
                scale=float(scale) if isinstance(scale, float | int) else head_dim**-0.5,
                window=self._window(asked.mask, options),
                cap=float(cap) if isinstance(cap, float | int) else None,
            )
        )
        return values.new_zeros(1, queries.shape[2], queries.shape[1], values.shape[3])

    def _window(self, mask: torch.Tensor | None, options: Mapping[str, object]) -> int:
        if mask is None:
            window = options.get("sliding_window")
            return window if isinstance(window, int) and window < self._context else 0
        number = float(mask.flatten()[0])
        if number not in range(len(self._masks)) or not bool((mask == number).all()):
            raise UserError("its attention adds biases of its own to scores")
        return window_of(self._masks[int(number)], self._context)


def window_of(visible: MaskFunction, context: int) -> int:
    """How many tokens a query sees, itself included; 0 is all that precede. Raises UserError when it is another pattern."""
    zero, keys = torch.zeros((), dtype=torch.int64), torch.arange(context)

    def seen(position: int) -> torch.Tensor:
        return visible(zero, zero, torch.tensor(position), keys).expand(context)

    window = int(seen(context - 1).sum())
    spread = range(0, context, max(1, context // _MASK_PROBES))
    for position in {*spread, *(min(window + each, context - 1) for each in (-1, 0, 1)), context - 1}:
        if not torch.equal(seen(position), (keys <= position) & (keys > position - window)):
            raise UserError("its attention hides more than what follows and what lies before a window")
    return window if window < context else 0


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """While open, `attend` answers the attention calls of this context."""
    token = _attending.set(attend)
    try:
        yield
    finally:
        _attending.reset(token)


@contextmanager
def observing(observer: AttentionSpecRecorder) -> Iterator[None]:
    """While open, an observer notes the attention calls and masks of this context."""
    token = _observer.set(observer)
    try:
        with attending(observer):
            yield
    finally:
        _observer.reset(token)


def register() -> None:
    """Register both attention functions and the mask with transformers."""
    AttentionInterface.register(NAME, _attention)
    AttentionInterface.register(OBSERVING, _attention)
    AttentionMaskInterface.register(OBSERVING, _mask)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    return _attending.get()(AttentionCall(module, query, key, value, attention_mask, options)), None


def _mask(*, mask_function: MaskFunction, q_length: int, kv_length: int, **_: object) -> torch.Tensor:
    return _observer.get().mask(mask_function, q_length, kv_length)


def _check_sizes(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    if queries.dim() != 4 or keys.shape != values.shape or keys.shape[3] != queries.shape[3]:
        raise UserError(
            f"its attention has queries, keys and values of different sizes ({queries.shape[-1]}, {keys.shape[-1]}, "
            f"{values.shape[-1]} numbers a head)"
        )
    if keys.shape[2] != queries.shape[2] or queries.shape[1] % keys.shape[1]:
        raise UserError("its attention reads other tokens than those computed")
    if queries.shape[3] % 2:
        raise UserError(f"its heads have an odd size, {queries.shape[3]}")
