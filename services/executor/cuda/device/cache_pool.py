"""The paged cache on a device and the host pool: the memory that block numbers in plans name.

On the device: [2, rows, one page], where `ExecutorLimits.rows` says which rows a block is. On the host a block
lies in one piece, its keys of all layers and then its values, so that a swap copies few large pieces.
"""

from collections.abc import Sequence

import numpy as np
import torch

from noria.proto.execution import Copy
from noria.services.executor.plan.limits import ExecutorLimits, Integers

Piece = tuple[int, int, int]


class DeviceCachePool:
    """Pages of all layers on the device. page_bytes: of the keys, or of the values, of one page of one layer."""

    def __init__(self, shape: ExecutorLimits, page_bytes: int, device: torch.device) -> None:
        self.shape, self.page_bytes = shape, page_bytes
        self._rows = shape.num_chunks * shape.pool_chunk_pages
        # Zeros, so that no page is ever read that holds a stray NaN, which masked probability 0 would not silence.
        self.data = torch.zeros((2, self._rows, page_bytes), dtype=torch.uint8, device=device)

    @property
    def pages(self) -> torch.Tensor:
        """All pages, those of keys first: [2 * rows, page bytes]."""
        return self.data.view(-1, self.page_bytes)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk."""
        return 2 * self.shape.pool_chunk_pages * self.page_bytes

    def block_bytes(self, group: int) -> int:
        """Bytes of one block of a group."""
        return 2 * self.shape.groups[group].layers * self.page_bytes

    def rows(self, blocks: Sequence[tuple[int, int]]) -> Integers:
        """Where (group, block) pairs lie in `pages`, in the order of a block on the host."""
        return np.concatenate([np.zeros(0, np.int64), *(self._block(group, block) for group, block in blocks)])

    def host_place(self, group: int, block: int) -> int:
        """The first byte of a block on the host."""
        tiles = self.shape.groups[group].blocks_per_chunk
        return block // tiles * self.chunk_bytes + block % tiles * self.block_bytes(group)

    def _block(self, group: int, block: int) -> Integers:
        first = int(self.shape.rows(group, np.array(block), self.shape.num_chunks))
        layers = np.arange(self.shape.groups[group].layers) * self.shape.num_chunks + first
        return np.concatenate((layers, layers + self._rows))


def rounds(pool: DeviceCachePool, copies: Sequence[Copy], most_bytes: int) -> list[Sequence[Copy]]:
    """Copies in portions of at most so many bytes, a block at least."""
    found: list[Sequence[Copy]] = []
    first = size = 0
    for index, copy in enumerate(copies):
        more = pool.block_bytes(copy.group)
        if size and size + more > most_bytes:
            found.append(copies[first:index])
            first, size = index, 0
        size += more
    return [*found, copies[first:]] if copies else found


def pieces(pool: DeviceCachePool, blocks: Sequence[tuple[int, int]]) -> list[Piece]:
    """For blocks on the host: first byte there, first byte where they lie one after the other, bytes; neighbours joined."""
    found: list[Piece] = []
    place = 0
    for group, block in blocks:
        host, size = pool.host_place(group, block), pool.block_bytes(group)
        if found and found[-1][0] + found[-1][2] == host:
            found[-1] = (*found[-1][:2], found[-1][2] + size)
        else:
            found.append((host, place, size))
        place += size
    return found
