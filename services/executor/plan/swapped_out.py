"""Streams whose cache was swapped out: which blocks of the host pool hold how much of them.

The scheduler owns the host's block numbers; this is only what its plans said, for another scheduler to be told. An entry
goes when its stream is in a slot again, or when one of its blocks is written anew.
"""

from dataclasses import dataclass

from noria.proto.base import Stream
from noria.proto.execution import Copy, Stash
from noria.services.executor.plan.slot_state import Occupant


@dataclass(slots=True, eq=False)
class Stashed:
    """A stream on the host. ids: the tokens known when it left its slot; its occupant has those that came later."""

    occupant: Occupant
    ids: list[int]
    prompt: int
    stash: Stash


class Stashes:
    """All of them, by stream and by block."""

    def __init__(self) -> None:
        self._by_stream: dict[Stream, Stashed] = {}
        self._by_block: dict[tuple[int, int], Stashed] = {}

    def __len__(self) -> int:
        return len(self._by_stream)

    @property
    def all(self) -> list[Stashed]:
        """In the order in which they were swapped out."""
        return list(self._by_stream.values())

    def overwrite(self, copies: tuple[Copy, ...]) -> None:
        """These host blocks are written: what they held before is gone."""
        for copy in copies:
            stashed = self._by_block.get((copy.group, copy.target))
            if stashed is not None:
                self.drop(stashed.occupant.stream)

    def add(self, stashed: Stashed) -> None:
        """A stream is on the host from now on."""
        stream = stashed.occupant.stream
        self.drop(stream)
        self._by_stream[stream] = stashed
        for group, blocks in enumerate(stashed.stash.blocks):
            self._by_block.update(((group, block), stashed) for block in blocks)

    def drop(self, stream: Stream) -> None:
        """A stream is not there any more, if it ever was."""
        stashed = self._by_stream.pop(stream, None)
        if stashed is not None:
            for group, blocks in enumerate(stashed.stash.blocks):
                for block in blocks:
                    if self._by_block.get((group, block)) is stashed:
                        del self._by_block[group, block]

    def clear(self) -> None:
        """Nothing of the host's content can be relied on."""
        self._by_stream.clear()
        self._by_block.clear()
