"""Streams whose cache was swapped out: which blocks of the host pool hold how many of their tokens.

The scheduler owns the host's block numbers; this is only what its plans said, for another scheduler to be told. An entry
goes when its stream is in a slot again, or when one of its blocks is written anew.
"""

from dataclasses import dataclass

from noria.proto.base import Stream
from noria.proto.execution import Copy, Stash
from noria.services.executor.plan.slot_state import SlotState


@dataclass(slots=True, eq=False)
class SwappedStream:
    """A stream swapped out to the host. ids: tokens known when it left its slot; later ones are in its state."""

    state: SlotState
    ids: list[int]
    prompt: int
    stash: Stash


class SwappedOut:
    """The swapped-out streams, by stream and by host block."""

    def __init__(self) -> None:
        self._by_stream: dict[Stream, SwappedStream] = {}
        self._by_block: dict[tuple[int, int], SwappedStream] = {}

    def __len__(self) -> int:
        return len(self._by_stream)

    @property
    def all(self) -> list[SwappedStream]:
        """The swapped-out streams in the order in which they left."""
        return list(self._by_stream.values())

    def overwrite(self, copies: tuple[Copy, ...]) -> None:
        """Drop the streams of which a host block is written anew."""
        for copy in copies:
            swapped = self._by_block.get((copy.group, copy.target))
            if swapped is not None:
                self.drop(swapped.state.stream)

    def add(self, swapped: SwappedStream) -> None:
        """Keep a stream that was swapped out."""
        stream = swapped.state.stream
        self.drop(stream)
        self._by_stream[stream] = swapped
        for group, blocks in enumerate(swapped.stash.blocks):
            self._by_block.update(((group, block), swapped) for block in blocks)

    def drop(self, stream: Stream) -> None:
        """Drop a stream, if it is here."""
        swapped = self._by_stream.pop(stream, None)
        if swapped is not None:
            for group, blocks in enumerate(swapped.stash.blocks):
                for block in blocks:
                    if self._by_block.get((group, block)) is swapped:
                        del self._by_block[group, block]

    def clear(self) -> None:
        """Drop all: the host pool's content is unknown."""
        self._by_stream.clear()
        self._by_block.clear()
