"""The fixed sizes that plans are checked against and arrays are laid out by."""

from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from noria.proto.execution import Group

Integers = NDArray[np.int64]
Whole = TypeVar("Whole", np.int32, np.int64)

RESERVED_CHUNKS: Final = 2
"""Chunk 0 of the pool is what padding reads (always zero), chunk 1 what padding writes; neither is ever allocated."""

CHUNK_TOKENS: Final = 256
"""Attention sums keys in spans of about so many tokens, one after the other.

A fixed span is what makes a result independent of batch and prefill chunk; 256 was as fast as 512 and faster than 128
on contexts of 256 tokens (docs/decisions/0004).
"""


class Shape(msgspec.Struct, frozen=True):
    """What a step may be: slots, query tokens, context, pages and vocabulary; num_blocks and host_slots count chunks."""

    max_slots: int
    max_batch_tokens: int
    max_model_tokens: int
    page_size: int
    num_blocks: int
    vocabulary: int
    groups: tuple[Group, ...] = (Group(0, 1),)
    host_slots: int = 0

    @property
    def pages_per_chunk(self) -> int:
        """Pages that attention sums in one go."""
        return max(1, CHUNK_TOKENS // self.page_size)

    @property
    def pool_chunk_pages(self) -> int:
        """Pages of single layers in one chunk of the pool: every group's blocks tile them exactly."""
        return self.groups[0].layers * self.groups[0].blocks_per_chunk

    def rows(self, group: int, blocks: NDArray[Whole], chunks: int) -> NDArray[Whole]:
        """Rows of blocks of a group in a pool of `chunks` chunks, for the group's first layer; layer r's lie r * chunks further.

        The rows of a layer lie together, block after block: gathering them a chunk apart took a fifth more of a step.
        """
        kind = self.groups[group]
        if kind.blocks_per_chunk == 1:
            return blocks
        part = blocks % kind.blocks_per_chunk
        return blocks // kind.blocks_per_chunk + part * (kind.layers * chunks)

    def table_width(self, group: int) -> int:
        """Entries in a slot's table: enough for the context in whole chunks of keys, or the ring."""
        chunk = self.pages_per_chunk * self.page_size
        whole = -(-self.max_model_tokens // chunk) * self.pages_per_chunk
        return self.groups[group].ring_pages or whole
