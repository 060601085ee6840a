"""The deadlines of requests. They count from receipt, and only one that has passed ends a request.

A request that cannot make it was refused by admission's prediction. What was accepted is not given up on a prediction, for that
may be wrong and a passed deadline is not. Expired requests leave before requests are ordered, so that they are never prefilled
and never the most urgent.
"""

import heapq
from typing import Final

from noria.services.scheduler.core.state.request import Request, RequestStatus

_KEPT: Final = 1024


class Deadlines:
    """Deadlines by time: adding one costs O(log n), one that was met costs nothing until it is due."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Request]] = []
        self._entries = 0
        self._passed_ns = 0

    def __len__(self) -> int:
        return len(self._due)

    @property
    def next_ns(self) -> int | None:
        """When the next deadline is due (nanoseconds); None without one."""
        return self._due[0][0] if self._due else None

    def watch(self, request: Request) -> None:
        """Keep the deadlines of a new request."""
        for due_ns in (request.asked.deadline_first_ns, request.asked.deadline_ns):
            if due_ns is not None:
                self._entries += 1
                heapq.heappush(self._due, (due_ns, self._entries, request))

    def expired(self, now_ns: int) -> list[Request]:
        """The requests whose time to the first token, or to the end, is over; each once."""
        self._passed_ns = now_ns
        due = self._due
        over: dict[Request, None] = {}
        while due and due[0][0] <= now_ns:
            request = heapq.heappop(due)[2]
            if _is_over(request, now_ns):
                over[request] = None
        return list(over)

    def tidy(self, requests: int) -> None:
        """Drop the deadlines of ended requests once they are most of what is kept. requests: how many live."""
        if len(self._due) > 4 * requests + _KEPT:
            self._due = [
                each for each in self._due if each[2].state not in (RequestStatus.FINISHED, RequestStatus.GONE)
            ]
            heapq.heapify(self._due)

    def check(self, requests: list[Request]) -> None:
        """Raises AssertionError unless every deadline that had not passed when last asked is watched."""
        watched = {(due_ns, request) for due_ns, _, request in self._due}
        for request in requests:
            if request.state is RequestStatus.FINISHED:
                continue
            for due_ns in (request.asked.deadline_first_ns, request.asked.deadline_ns):
                assert due_ns is None or due_ns <= self._passed_ns or (due_ns, request) in watched


def _is_over(request: Request, now_ns: int) -> bool:
    """Whether a deadline that was due has been missed."""
    if request.state in (RequestStatus.FINISHED, RequestStatus.GONE):
        return False
    if request.asked.deadline_ns is not None and request.asked.deadline_ns <= now_ns:
        return True
    first_ns = request.asked.deadline_first_ns
    return first_ns is not None and first_ns <= now_ns and not request.progress.output
