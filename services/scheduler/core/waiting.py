"""The one waiting queue: a heap by the policy's rank, with counts for credit. Joining and leaving cost O(log n)."""

import heapq
from collections.abc import Iterator

from noria.services.scheduler.core.request import Request, State

Rank = tuple[int, ...]


class WaitingQueue:
    """Requests in state WAITING. Who leaves from the middle stays in the heap until it comes up or is swept.

    Who is passed over, because it waits for another's prefix, keeps its rank and is out of the heap until it is woken.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Request]] = []
        self._entries: dict[Request, int] = {}
        self._passed: dict[Request, Rank] = {}
        self._next_entry = 0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._entries))

    def add(self, request: Request, rank: Rank) -> None:
        """Let a request wait; least rank first."""
        assert request not in self._entries
        self._next_entry += 1
        self._entries[request] = self._next_entry
        self.tokens += request.known
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
        """Take a request out."""
        del self._entries[request]
        self._passed.pop(request, None)
        self.tokens -= request.known
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._entries):
            self._heap = [item for item in self._heap if self._entries.get(item[2]) == item[1]]
            heapq.heapify(self._heap)

    def pass_over(self, request: Request, rank: Rank) -> None:
        """Let others go before this one until it is woken."""
        self._entries[request] = -1
        self._passed[request] = rank

    def wake(self, request: Request) -> None:
        """Its turn by rank again, if it is still here and passed over."""
        rank = self._passed.pop(request, None)
        if rank is not None:
            self._next_entry += 1
            self._entries[request] = self._next_entry
            heapq.heappush(self._heap, (rank, self._next_entry, request))

    @property
    def passed_over(self) -> int:
        """How many wait for another's prefix."""
        return len(self._passed)

    def learned(self) -> None:
        """A waiting request's known tokens grew by one: a step begun before its reset has ended."""
        self.tokens += 1

    def check(self) -> None:
        """Counts and states agree."""
        assert self.tokens == sum(request.known for request in self._entries)
        assert all(request.state is State.WAITING for request in self._entries)
        assert {request for _, _, request in self._heap} | set(self._passed) >= set(self._entries)
        assert all(self._entries[request] == -1 for request in self._passed)
