"""Waiting requests in order of a rank that is fixed while they wait. Joining and leaving cost O(log n)."""

import heapq

from noria.services.scheduler.core.state.request import Request

Rank = tuple[int, ...]


class RankedHeap:
    """A heap by rank. Who leaves from the middle stays in the heap until it comes up or is swept."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Request]] = []
        self._entries: dict[Request, int] = {}
        self._next_entry = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request: Request) -> bool:
        return request in self._entries

    def add(self, request: Request, rank: Rank) -> None:
        """Let a request join; least rank first."""
        assert request not in self._entries
        self._next_entry += 1
        self._entries[request] = self._next_entry
        heapq.heappush(self._heap, (rank, self._next_entry, request))

    def first(self) -> Request | None:
        """The request whose turn is next."""
        heap = self._heap
        while heap:
            _, entry, request = heap[0]
            if self._entries.get(request) == entry:
                return request
            heapq.heappop(heap)
        return None

    def remove(self, request: Request) -> None:
        """Let a request leave."""
        del self._entries[request]
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._entries):
            self._heap = [item for item in self._heap if self._entries.get(item[2]) == item[1]]
            heapq.heapify(self._heap)

    def check(self, requests: set[Request]) -> None:
        """It holds these requests and no others."""
        assert requests == self._entries.keys()
        assert {request for _, entry, request in self._heap if self._entries.get(request) == entry} == requests
