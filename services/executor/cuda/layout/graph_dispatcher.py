"""Which steps are replayed from a graph, which are recorded first, and which are computed without one.

Pure: it knows shapes and counts, the graphs themselves are its values. A shape is recorded when it comes for the second
time, so that what is seen once costs nothing; the graph that was not used for longest gives way. What could not be
recorded is not tried again, and after `REFUSALS_MAX` shapes nothing is.
"""

from collections.abc import Hashable
from enum import Enum
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
G = TypeVar("G")
REFUSALS_MAX: Final = 8
_SEEN_MAX: Final = 1024


class Way(Enum):
    """How a step is computed."""

    REPLAY = "replay"
    CAPTURE = "capture"
    EAGER = "eager"


class GraphBook(Generic[K, G]):
    """At most `most` graphs; 0 is none ever."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._graphs: dict[K, G] = {}
        self._seen: dict[K, None] = {}
        self._refused: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def choose(self, shape: K) -> Way:
        """How to compute a step of this shape now."""
        if shape in self._graphs:
            return Way.REPLAY
        if not self._most or shape in self._refused or len(self._refused) >= REFUSALS_MAX:
            return Way.EAGER
        if shape in self._seen:
            return Way.CAPTURE
        self._seen[shape] = None
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return Way.EAGER

    def graph(self, shape: K) -> G:
        """The graph of a shape, which is the one used last from now on."""
        graph = self._graphs.pop(shape)
        self._graphs[shape] = graph
        return graph

    def captured(self, shape: K, graph: G) -> list[G]:
        """Keep a graph; returns those that gave way."""
        assert shape not in self._graphs
        self._graphs[shape] = graph
        self._seen.pop(shape, None)
        gone = []
        while len(self._graphs) > self._most:
            gone.append(self._graphs.pop(next(iter(self._graphs))))
        return gone

    def refuse(self, shape: K, reason: str) -> bool:
        """A shape could not be recorded; True for the first of them, which is worth telling."""
        self._refused[shape] = reason
        return len(self._refused) == 1

    def clear(self) -> list[G]:
        """Drop all graphs, for the memory that they hold; they may come again."""
        gone = list(self._graphs.values())
        self._graphs.clear()
        return gone
