"""A batch as torch tensors for the reference operations, with rotations and masks made once for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from noria.services.executor.model.rope import Rope
from noria.services.executor.plan.attention_spans import AttentionReads, AttentionSpan, SingleQueries, attention_reads
from noria.services.executor.plan.batch import Batch
from noria.services.executor.plan.limits import ExecutorLimits

HIDDEN_SCORE: Final = -1e30
"""Added to the score of a key that must not be seen: finite, so that a wholly hidden chunk gives weight 0, not NaN."""


@dataclass(slots=True, eq=False)
class SingleQueryTensors:
    """`SingleQueries` as tensors; mask [items, 1, 1, chunk]."""

    rows: torch.Tensor
    counts: list[int]
    members: torch.Tensor
    pages: torch.Tensor
    mask: torch.Tensor


@dataclass(slots=True, eq=False)
class KeyChunk:
    """One attention span's keys for a slice: pages [pages per span], mask [1, 1, padded query rows, keys]."""

    pages: torch.Tensor
    mask: torch.Tensor


@dataclass(slots=True, eq=False)
class SpanKeyChunks:
    """The query rows of a slice, and the spans of keys that they see."""

    row: int
    length: int
    chunks: list[KeyChunk]


@dataclass(slots=True, eq=False)
class GroupTensors:
    """One group's part of a step: write_slots [T] and what its layers read."""

    write_slots: torch.Tensor
    singles: SingleQueryTensors | None
    spans: list[SpanKeyChunks]


@dataclass(slots=True, eq=False)
class StepTensors:
    """One step's tensors: token_ids [T]; by rope, cosine and sine [T, 1, head size] in float32; groups."""

    token_ids: torch.Tensor
    turns: list[tuple[torch.Tensor, torch.Tensor]]
    groups: list[GroupTensors]


class RotaryTable:
    """Cosine and sine of every position; the sine's first half is negated, as the rotation needs it."""

    def __init__(self, rope: Rope, head_dim: int, max_model_tokens: int, device: torch.device | None = None) -> None:
        frequencies = torch.tensor(rope.frequencies(head_dim), dtype=torch.float32)
        angles = torch.arange(max_model_tokens, dtype=torch.float32)[:, None] * frequencies
        self._cosine = torch.cat((angles.cos(), angles.cos()), -1)[:, None].to(device)
        self._sine = torch.cat((-angles.sin(), angles.sin()), -1)[:, None].to(device)

    def of(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and signed sine [T, 1, head size]."""
        return self._cosine.index_select(0, positions), self._sine.index_select(0, positions)


def padded_rows(rows: int) -> int:
    """Query rows that attention computes: a multiple of 4.

    Float32 products of 1 to 3 rows sum in another order than those of 4 and more.
    """
    return -(-rows // 4) * 4


def to_step(
    batch: Batch, rotations: Sequence[RotaryTable], shape: ExecutorLimits, query_group: int, dtype: torch.dtype
) -> StepTensors:
    """The tensors of a batch."""
    positions = torch.from_numpy(batch.positions)
    return StepTensors(
        token_ids=torch.from_numpy(batch.token_ids),
        turns=[each.of(positions) for each in rotations],
        groups=[
            GroupTensors(
                torch.from_numpy(pages.write_slots),
                *_parts(attention_reads(shape, batch.slices, pages), shape.page_size, pages.window, query_group, dtype),
            )
            for pages in batch.pages
        ],
    )


def _parts(
    found: AttentionReads, page_size: int, window: int, query_group: int, dtype: torch.dtype
) -> tuple[SingleQueryTensors | None, list[SpanKeyChunks]]:
    singles = _singles(found.singles, page_size, dtype) if found.singles else None
    return singles, [_span(span, page_size, window, query_group, dtype) for span in found.spans]


def _singles(singles: SingleQueries, page_size: int, dtype: torch.dtype) -> SingleQueryTensors:
    keys = torch.arange(singles.pages.shape[1] * page_size)
    hidden = keys >= torch.from_numpy(singles.ends)[:, None]
    if singles.firsts.any():
        hidden |= keys < torch.from_numpy(singles.firsts)[:, None]
    return SingleQueryTensors(
        rows=torch.from_numpy(singles.rows),
        counts=list(singles.counts),
        members=torch.from_numpy(singles.members),
        pages=torch.from_numpy(singles.pages).flatten(),
        mask=_mask(hidden, dtype)[:, None, None],
    )


def _span(span: AttentionSpan, page_size: int, window: int, query_group: int, dtype: torch.dtype) -> SpanKeyChunks:
    chunk = span.pages.shape[1] * page_size
    # A row of the padded query block is (token, query head of the group): all rows of a token see the same keys.
    rows = torch.arange(padded_rows(span.length * query_group)) // query_group
    sees = (span.start + rows.clamp_(max=span.length - 1))[:, None]
    unseen = span.start + span.length - 1 - window if window else -1
    nothing_hidden = torch.zeros(1, dtype=dtype).expand(1, 1, len(rows), chunk)
    chunks = []
    for level, pages in enumerate(torch.from_numpy(span.pages), span.level):
        first, last = level * chunk, (level + 1) * chunk - 1
        mask = nothing_hidden
        if last > span.start or first <= unseen:
            keys = torch.arange(first, last + 1)
            hidden = keys > sees
            mask = _mask(hidden | (keys <= sees - window) if window else hidden, dtype)[None, None]
        chunks.append(KeyChunk(pages, mask))
    return SpanKeyChunks(span.row, span.length, chunks)


def _mask(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, HIDDEN_SCORE)
