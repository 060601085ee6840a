"""The fixed sizes by which plans are checked and arrays are laid out."""

from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.proto.execution import Group

Integers = NDArray[np.int64]
Whole = TypeVar("Whole", np.int32, np.int64)

RESERVED_CHUNKS: Final = 2
"""Chunk 0 of the pool is what padding reads (always zero), chunk 1 what padding writes; neither is ever allocated."""

ATTENTION_SPAN_TOKENS: Final = 256
"""Attention sums keys in spans of about so many tokens, one after the other.

A fixed span is what makes a result independent of batch and prefill chunk; 256 was as fast as 512 and faster than 128
on contexts of 256 tokens (docs/decisions/0004).
"""


class ExecutorLimits(msgspec.Struct, frozen=True):
    """The largest step: slots, query tokens, context, vocabulary and page size; and how many chunks the cache and the host pool have."""

    max_slots: int
    max_batch_tokens: int
    max_model_tokens: int
    page_size: int
    num_chunks: int
    vocabulary: int
    groups: tuple[Group, ...] = (Group(0, 1),)
    num_host_chunks: int = 0

    @property
    def pages_per_span(self) -> int:
        """Pages in one attention span."""
        return max(1, ATTENTION_SPAN_TOKENS // self.page_size)

    @property
    def pool_chunk_pages(self) -> int:
        """Pages of single layers in one chunk of the pool: every group's blocks tile them exactly."""
        return self.groups[0].layers * self.groups[0].blocks_per_chunk

    def rows(self, group: int, blocks: NDArray[Whole], chunks: int) -> NDArray[Whole]:
        """The pool rows of a group's blocks in its first layer; those of its layer r lie r * chunks further.

        The rows of a layer lie together, block after block: gathering them a chunk apart took a fifth more of a step.
        """
        kind = self.groups[group]
        if kind.blocks_per_chunk == 1:
            return blocks
        part = blocks % kind.blocks_per_chunk
        return blocks // kind.blocks_per_chunk + part * (kind.layers * chunks)

    def table_width(self, group: int) -> int:
        """Entries in a slot's table: enough for the context in whole chunks of keys, or the ring."""
        chunk = self.pages_per_span * self.page_size
        whole = -(-self.max_model_tokens // chunk) * self.pages_per_span
        return self.groups[group].ring_pages or whole
