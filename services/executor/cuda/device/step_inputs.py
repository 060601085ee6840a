"""A step's input arrays on a device, as tensors in one buffer (`cuda/layout/step_layout.py`)."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from noria.services.executor.cuda.layout.step_layout import StepLayout
from noria.services.executor.cuda.layout.step_sizes import StepSizes

_DTYPES: Final = {
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(slots=True, eq=False)
class GroupInputs:
    """One group's input arrays. window, ring: as in `PageTables`.

    table [slices, entries]; write_slots [T]; splits [n, 2]: slice and rank of the split; joins [singles, 2]: a single's
    first split and how many it has.
    """

    window: int
    ring: int
    table: torch.Tensor
    write_slots: torch.Tensor
    splits: torch.Tensor
    joins: torch.Tensor


@dataclass(slots=True, eq=False)
class SamplingInputs:
    """What is sampled, by row [S]; the columns of PARAMETERS; then what is added to or taken from logits.

    counted: rows with penalties. history, by token that they count: its rank among `counted`, what it is of, its id; of
    those at pending_at the id is what slot pending_slots sampled at place pending_places.
    biases: what is added to which row's logit of which id.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    top_p: torch.Tensor
    seed: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor
    top_k: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    logprobs: torch.Tensor
    counted: torch.Tensor
    history: torch.Tensor
    history_rows: torch.Tensor
    history_kinds: torch.Tensor
    pending_at: torch.Tensor
    pending_slots: torch.Tensor
    pending_places: torch.Tensor
    bias_rows: torch.Tensor
    bias_ids: torch.Tensor
    bias_values: torch.Tensor


@dataclass(slots=True, eq=False)
class StepInputs:
    """One step's input arrays. carry [T]: the slot whose last token a row takes, or NOBODY. starts, rows, lengths: by slice.

    tiles [n, 2]: slice, and its first query token there. singles: the slices of one token.
    """

    sizes: StepSizes
    token_ids: torch.Tensor
    positions: torch.Tensor
    carry: torch.Tensor
    starts: torch.Tensor
    rows: torch.Tensor
    lengths: torch.Tensor
    tiles: torch.Tensor
    singles: torch.Tensor
    groups: list[GroupInputs]
    sampled: SamplingInputs


def inputs(layout: StepLayout, buffer: torch.Tensor) -> StepInputs:
    """The arrays in a buffer of bytes; they stay where they are, whatever is copied into it."""
    found = {
        each.name: buffer[each.start : each.end].view(_DTYPES[each.dtype]).view(each.shape)
        for each in layout.places.values()
    }
    groups = [
        GroupInputs(
            kind.window,
            kind.ring_pages,
            *(found[f"{group}.{name}"] for name in ("table", "write_slots", "splits", "joins")),
        )
        for group, kind in enumerate(layout.shape.groups)
    ]
    named = {each: each for each in SamplingInputs.__slots__} | {
        each: f"sampled_{each}" for each in ("rows", "slots", "positions")
    }
    sampled = SamplingInputs(**{name: found[place] for name, place in named.items()})
    return StepInputs(
        sizes=layout.sizes,
        token_ids=found["token_ids"],
        positions=found["positions"],
        carry=found["carry"],
        starts=found["starts"],
        rows=found["rows"],
        lengths=found["lengths"],
        tiles=found["tiles"],
        singles=found["singles"],
        groups=groups,
        sampled=sampled,
    )


def host_buffer(layout: StepLayout, *, pinned: bool = False) -> torch.Tensor:
    """A buffer on the host for a layout; `layout.fill(buffer.numpy(), batch)` writes it."""
    return torch.from_numpy(np.zeros(layout.bytes, np.uint8)) if not pinned else _pinned(layout.bytes)


def _pinned(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8, pin_memory=True)
