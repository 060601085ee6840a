"""The offsets of a step's arrays in one buffer, which one copy brings to a device.

Pure: numpy only. A buffer on the host is filled from a batch; the same places in a buffer on a device are what kernels
read (`cuda/device/step_inputs.py`). What is beyond a batch is padding: query tokens that no slice has, which write chunk 1; work that
kernels skip; sampled rows of a slot that no plan has.
"""

import math
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.services.executor.cuda.layout.step_sizes import (
    SPLIT_TOKENS,
    StepSizes,
    first_split,
    ranks,
    split_counts,
    tile_counts,
)
from noria.services.executor.plan.batch import Batch, PageTables
from noria.services.executor.plan.limits import ExecutorLimits, Integers
from noria.services.executor.plan.sampling_metadata import PARAMETERS, RECENT_TOKENS, SamplingMetadata

NOBODY: Final = -1
"""In place of a slice, row or slot: padding, which kernels skip."""

PROMPT, OUTPUT = 1, 2
"""What a token of a history is of; 0 is padding."""

_ALIGNMENT: Final = 16
Array = NDArray[np.generic]


class BufferOffset(msgspec.Struct, frozen=True):
    """One array in the buffer: its first byte, the name of its numpy dtype, its shape."""

    name: str
    start: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """The byte after the array."""
        return self.start + np.dtype(self.dtype).itemsize * math.prod(self.shape)


class StepLayout:
    """The offsets of all arrays of steps of some sizes."""

    def __init__(self, shape: ExecutorLimits, sizes: StepSizes, tile_tokens: int) -> None:
        self.shape, self.sizes, self.tile_tokens = shape, sizes, tile_tokens
        self.places: dict[str, BufferOffset] = {}
        end = 0
        for name, dtype, dimensions in _arrays(sizes):
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            self.places[name] = BufferOffset(name, start, dtype, dimensions)
            end = self.places[name].end
        self.bytes = -(-end // _ALIGNMENT) * _ALIGNMENT

    def views(self, buffer: NDArray[np.uint8]) -> dict[str, Array]:
        """The arrays in a buffer on the host, which has at least `bytes` bytes."""
        return {
            each.name: buffer[each.start : each.end].view(each.dtype).reshape(each.shape)
            for each in self.places.values()
        }

    def fill(self, buffer: NDArray[np.uint8], batch: Batch) -> None:
        """Write a batch, whose sizes are at most the layout's, and padding."""
        arrays = self.views(buffer)
        _fill_tokens(arrays, batch)
        _fill_slices(arrays, batch, self.tile_tokens)
        for group, pages in enumerate(batch.pages):
            _fill_pages(arrays, f"{group}.", pages, batch, self.shape.page_size)
        _fill_sampling(arrays, batch.sampler, self.shape.max_slots)


def _arrays(sizes: StepSizes) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for name in ("token_ids", "positions", "carry"):
        yield name, "int32", (sizes.tokens,)
    for name in ("starts", "rows", "lengths"):
        yield name, "int32", (sizes.slices,)
    yield "tiles", "int32", (sizes.tiles, 2)
    yield "singles", "int32", (sizes.singles,)
    for group, each in enumerate(sizes.groups):
        yield f"{group}.table", "int32", (sizes.slices, each.entries)
        yield f"{group}.write_slots", "int64", (sizes.tokens,)
        yield f"{group}.splits", "int32", (each.splits, 2)
        yield f"{group}.joins", "int32", (sizes.singles, 2)
    yield "sampled_rows", "int32", (sizes.samples,)
    yield "sampled_slots", "int32", (sizes.samples,)
    yield "sampled_positions", "int64", (sizes.samples,)
    for name in PARAMETERS.names or ():
        yield name, "int64" if name == "seed" else PARAMETERS[name].name, (sizes.samples,)
    yield "counted", "int32", (sizes.counted,)
    for name in ("history", "history_rows", "history_kinds"):
        yield name, "int32", (sizes.history + 1,)
    for name in ("pending_at", "pending_slots", "pending_places"):
        yield name, "int32", (sizes.pending,)
    yield "bias_rows", "int32", (sizes.biases,)
    yield "bias_ids", "int32", (sizes.biases,)
    yield "bias_values", "float32", (sizes.biases,)


def _put(array: Array, values: Array, padding: int | float = 0) -> None:
    array[: len(values)] = values
    array[len(values) :] = padding


def _fill_tokens(arrays: dict[str, Array], batch: Batch) -> None:
    _put(arrays["token_ids"], batch.token_ids)
    _put(arrays["positions"], batch.positions)
    carry = arrays["carry"]
    carry[:] = NOBODY
    carry[batch.carry_rows] = batch.carry_slots


def _fill_slices(arrays: dict[str, Array], batch: Batch, tile_tokens: int) -> None:
    slices = batch.slices
    _put(arrays["starts"], slices.starts)
    _put(arrays["rows"], slices.rows)
    _put(arrays["lengths"], slices.lengths)
    _put(arrays["singles"], np.flatnonzero(slices.lengths == 1), NOBODY)
    counts = np.where(slices.lengths == 1, 0, tile_counts(slices.lengths, tile_tokens))
    owners, rank = ranks(counts)
    # The last tiles of a prompt see the most keys: begun first, they do not keep the device waiting at the end.
    _put(arrays["tiles"], np.stack((owners, rank * tile_tokens), 1)[::-1], NOBODY)


def _fill_pages(arrays: dict[str, Array], prefix: str, pages: PageTables, batch: Batch, page_size: int) -> None:
    table, width = arrays[prefix + "table"], pages.table.shape[1]
    table[: len(pages.table), :width] = pages.table
    table[: len(pages.table), width:] = 0
    table[len(pages.table) :] = 0
    slots = arrays[prefix + "write_slots"]
    slots[: len(pages.write_slots)] = pages.write_slots
    # Chunk 1 is row 1 of every group's layers.
    slots[len(pages.write_slots) :] = page_size + np.arange(len(slots) - len(pages.write_slots)) % page_size
    single = np.flatnonzero(batch.slices.lengths == 1)
    ends = batch.slices.starts[single] + 1
    counts = split_counts(ends, pages.window, SPLIT_TOKENS)
    owners, rank = ranks(counts)
    rank += first_split(ends, pages.window, SPLIT_TOKENS)[owners]
    _put(arrays[prefix + "splits"], np.stack((single[owners], rank), 1), NOBODY)
    _put(arrays[prefix + "joins"], np.stack((np.cumsum(counts) - counts, counts), 1))


def _fill_sampling(arrays: dict[str, Array], sampler: SamplingMetadata | None, max_slots: int) -> None:
    none = np.zeros(0, np.int64)
    _put(arrays["sampled_rows"], none if sampler is None else sampler.rows)
    _put(arrays["sampled_slots"], none if sampler is None else sampler.slots, max_slots)
    _put(arrays["sampled_positions"], none if sampler is None else sampler.positions)
    parameters = np.zeros(0, PARAMETERS) if sampler is None else sampler.parameters
    for name in PARAMETERS.names or ():
        column = parameters[name]
        padding = {"top_p": 1, "repetition": 1, "least": -math.inf, "logprobs": -1}.get(name, 0)
        _put(arrays[name], column.view(np.int64) if name == "seed" else column, padding)
    if sampler is not None:
        _fill_history(arrays, sampler)
        owners, _ = ranks(np.diff(sampler.bias_starts))
        _put(arrays["bias_rows"], owners)
        _put(arrays["bias_ids"], sampler.bias_ids)
        _put(arrays["bias_values"], sampler.bias_values)
        return
    arrays["counted"][:] = NOBODY
    for name in ("history", "history_rows", "history_kinds", "pending_slots", "pending_places"):
        arrays[name][:] = 0
    for name in ("bias_rows", "bias_ids", "bias_values"):
        arrays[name][:] = 0
    arrays["pending_at"][:] = len(arrays["history"]) - 1


def _fill_history(arrays: dict[str, Array], sampler: SamplingMetadata) -> None:
    lengths = np.diff(sampler.history_starts)
    counted = np.flatnonzero(lengths)
    _put(arrays["counted"], counted, NOBODY)
    owners, rank = ranks(lengths[counted])
    kinds: Integers = np.where(rank < sampler.prompts[counted][owners], PROMPT, OUTPUT)
    _put(arrays["history"], sampler.history)
    _put(arrays["history_rows"], owners)
    _put(arrays["history_kinds"], kinds)
    # What is pending beyond the batch goes where the padding after the history is.
    _put(arrays["pending_at"], sampler.pending_at, len(arrays["history"]) - 1)
    _put(arrays["pending_slots"], sampler.pending_slots)
    _put(arrays["pending_places"], sampler.pending_positions % RECENT_TOKENS)
