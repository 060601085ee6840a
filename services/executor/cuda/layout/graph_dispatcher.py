"""Decides which steps replay a graph, which record one first, and which are computed without.

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


class GraphMode(Enum):
    """How a step is computed: by replaying a graph, by recording one, or without."""

    REPLAY = "replay"
    CAPTURE = "capture"
    EAGER = "eager"


class GraphDispatcher(Generic[K, G]):
    """The graphs by shape, at most `most`; the one not used for longest gives way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._graphs: dict[K, G] = {}
        self._seen: dict[K, None] = {}
        self._refused: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def choose(self, shape: K) -> GraphMode:
        """How to compute a step of this shape now."""
        if shape in self._graphs:
            return GraphMode.REPLAY
        if not self._most or shape in self._refused or len(self._refused) >= REFUSALS_MAX:
            return GraphMode.EAGER
        if shape in self._seen:
            return GraphMode.CAPTURE
        self._seen[shape] = None
        if len(self._seen) > _SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        return GraphMode.EAGER

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
        """Note a shape that could not be recorded. Returns True for the first, which is worth a log line."""
        self._refused[shape] = reason
        return len(self._refused) == 1

    def clear(self) -> list[G]:
        """Drop all graphs, for the memory that they hold; they may come again."""
        gone = list(self._graphs.values())
        self._graphs.clear()
        return gone
