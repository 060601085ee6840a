"""The fixed sizes that plans are checked against and arrays are laid out by."""

from typing import Final

import msgspec

RESERVED_BLOCKS: Final = 2
"""Block 0 is what padding reads (always zero), block 1 what padding writes; neither is ever allocated."""

CHUNK_TOKENS: Final = 256
"""Attention sums keys in spans of about so many tokens, one after the other.

A fixed span is what makes a result independent of batch and prefill chunk; 256 was as fast as 512 and faster than 128
on contexts of 256 tokens (docs/decisions/0004).
"""


class Shape(msgspec.Struct, frozen=True):
    """What a step may be: slots, query tokens, context, pages and vocabulary."""

    max_slots: int
    max_batch_tokens: int
    max_model_tokens: int
    page_size: int
    num_blocks: int
    vocabulary: int

    @property
    def pages_per_chunk(self) -> int:
        """Pages that attention sums in one go."""
        return max(1, CHUNK_TOKENS // self.page_size)

    @property
    def table_width(self) -> int:
        """Entries in a slot's block table: enough for the context, in whole chunks."""
        chunk = self.pages_per_chunk * self.page_size
        return -(-self.max_model_tokens // chunk) * self.pages_per_chunk
