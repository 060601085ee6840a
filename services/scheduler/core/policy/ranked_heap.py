"""A priority queue whose members may leave from the middle. Joining and leaving cost O(log n)."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)
Rank = tuple[int, ...]


class RankedHeap(Generic[Member]):
    """Members by a rank that is fixed while they are here. Who leaves from the middle stays in the heap until it comes up or is swept."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Member]] = []
        self._entries: dict[Member, int] = {}
        self._next_entry = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, member: Member) -> bool:
        return member in self._entries

    def add(self, member: Member, rank: Rank) -> None:
        """Let a member join; the least rank comes first, of equal ones who joined first."""
        assert member not in self._entries
        self._next_entry += 1
        self._entries[member] = self._next_entry
        heapq.heappush(self._heap, (rank, self._next_entry, member))

    def first(self) -> Member | None:
        """The member of least rank; None without any."""
        heap = self._heap
        while heap:
            _, entry, member = heap[0]
            if self._entries.get(member) == entry:
                return member
            heapq.heappop(heap)
        return None

    def remove(self, member: Member) -> None:
        """Let a member leave."""
        del self._entries[member]
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._entries):
            self._heap = [item for item in self._heap if self._entries.get(item[2]) == item[1]]
            heapq.heapify(self._heap)

    def check(self, members: set[Member]) -> None:
        """Raises AssertionError when it does not hold exactly these members."""
        assert members == self._entries.keys()
        assert {member for _, entry, member in self._heap if self._entries.get(member) == entry} == members
