"""Chunks of cache memory: the unit that changes hands between the kinds of attention.

Knows numbers alone. The device's pool and the host's are two of the same kind.
"""

from collections.abc import Collection
from typing import Final


class CacheChunkPool:
    """The free chunks of the cache, numbered `reserved` to `total - 1`; the first ones are padding targets and never given out."""

    def __init__(self, total: int, reserved: int) -> None:
        self._reserved = reserved
        self._total = total
        # Last freed, first given: its memory is warm, and a fault in reuse shows early.
        self._blank = dict.fromkeys(range(total - 1, reserved - 1, -1))
        self.size: Final = total - reserved

    @property
    def blank(self) -> int:
        """How many chunks hold nothing."""
        return len(self._blank)

    def take(self, count: int) -> list[int]:
        """Give out so many chunks; the caller has made sure that they are there."""
        assert count <= len(self._blank)
        taken = [self._blank.popitem()[0] for _ in range(count)]
        taken.reverse()
        return taken

    def claim(self, chunk: int) -> bool:
        """Take this chunk, which holds somebody's content already; False when it is not blank."""
        if chunk not in self._blank:
            return False
        del self._blank[chunk]
        return True

    def give_back(self, chunk: int) -> None:
        """Take a chunk back; it is blank from now on."""
        self._blank[chunk] = None

    def check(self, used: Collection[int]) -> None:
        """Raises AssertionError when a chunk has two owners, is lost, or is a reserved one."""
        every = [*self._blank, *used]
        assert len(every) == len(set(every)) == self.size, "a chunk has two owners or none"
        assert all(self._reserved <= chunk < self._total for chunk in every)
