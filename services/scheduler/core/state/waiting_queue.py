"""The waiting queue: how many wait, and in which order, which is the policy's. Joining and leaving are O(log n)."""

from collections.abc import Iterator
from dataclasses import dataclass

from noria.services.scheduler.core.state.request import Request, RequestStatus
from noria.services.scheduler.core.state.request_policy import RequestPolicy, WaitingOrder


@dataclass(slots=True)
class QueuedWork:
    """How many wait, and the tokens of their prompts."""

    requests: int = 0
    tokens: int = 0


class WaitingQueue:
    """Requests in state WAITING.

    Who is passed over, because it waits for another's prefix or is suspected, has no place in the order until it is woken.
    """

    def __init__(self, order: WaitingOrder) -> None:
        self._order = order
        self._requests: dict[Request, None] = {}
        self._passed: dict[Request, None] = {}
        self.tokens = 0
        self._queues: dict[str, QueuedWork] = {"": QueuedWork()}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(list(self._requests))

    def add(self, request: Request) -> None:
        """Let a request wait."""
        assert request not in self._requests
        self._requests[request] = None
        self.tokens += request.known
        self._count(request, 1)
        self._order.join(request)

    def first(self) -> Request | None:
        """The request whose turn is next."""
        return self._order.first()

    def remove(self, request: Request) -> None:
        """Take a request out."""
        del self._requests[request]
        self.tokens -= request.known
        self._count(request, -1)
        if request in self._passed:
            del self._passed[request]
        else:
            self._order.leave(request)

    def pass_over(self, request: Request) -> None:
        """Let others go before this one until it is woken, as a suspect may be already."""
        if request not in self._passed:
            self._order.leave(request)
            self._passed[request] = None

    def wake(self, request: Request) -> None:
        """Give a request its place again, if it is here, was passed over, and nobody suspects it."""
        if request in self._passed and not request.suspicion.suspected:
            del self._passed[request]
            self._order.rejoin(request)

    def queue(self, traffic_class: str) -> QueuedWork:
        """How much waits of a class; "" for all together."""
        return self._queues.get(traffic_class) or QueuedWork()

    def busy(self) -> list[str]:
        """The classes of which some wait, and "" for all, when anybody waits."""
        return [name for name, queue in self._queues.items() if queue.requests]

    def learned(self) -> None:
        """Count one more known token of a waiting request: a step begun before its reset has ended."""
        self.tokens += 1

    def reorder(self, policy: RequestPolicy) -> None:
        """Put everybody under a policy, oldest first."""
        requests = sorted(self._requests, key=lambda each: each.asked.seniority)
        ordered = [request for request in requests if request not in self._passed]
        for request in ordered:
            self._order.leave(request)
        self._order = policy.order
        for request in requests:
            policy.adopt(request)
        for request in ordered:
            self._order.rejoin(request)

    def check(self) -> None:
        """Raises AssertionError when counts, states and order disagree."""
        assert self.tokens == sum(request.known for request in self._requests)
        assert self._queues[""].requests == len(self._requests)
        assert sum(queue.tokens for name, queue in self._queues.items() if name) <= self._queues[""].tokens
        assert all(request.state is RequestStatus.WAITING for request in self._requests)
        assert self._passed.keys() <= self._requests.keys()
        self._order.check(self._requests.keys() - self._passed.keys())

    def _count(self, request: Request, change: int) -> None:
        name, tokens = request.asked.submission.traffic_class, request.asked.prompt_tokens * change
        for each in dict.fromkeys(("", name)):
            queue = self._queues.get(each)
            if queue is None:
                queue = self._queues[each] = QueuedWork()
            queue.requests += change
            queue.tokens += tokens
