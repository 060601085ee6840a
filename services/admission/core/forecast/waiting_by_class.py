"""Accepted requests that have not got a token yet, by class: what is bounded, and what may be shed when there is no room."""

from dataclasses import dataclass, field

from noria.services.admission.core.forecast.scheduler_credit import UncountedWork
from noria.services.admission.core.ledger.request import Request
from noria.services.admission.core.tenants.tenant_policy import ClassRule, TenantPolicy


@dataclass(slots=True, eq=False)
class ClassQueue:
    """One class's requests by number, oldest first, with their streams and the tokens of their prompts."""

    requests: dict[int, Request] = field(default_factory=dict)
    streams: int = 0
    tokens: int = 0


class WaitingByClass:
    """The requests without a token yet, in one queue for each traffic class."""

    def __init__(self) -> None:
        self._queues: dict[str, ClassQueue] = {}

    def of(self, traffic_class: str) -> ClassQueue:
        """One class's queue."""
        return self._queues.setdefault(traffic_class, ClassQueue())

    def add(self, request: Request) -> None:
        """Add an accepted request to the queue of its class."""
        queue = self.of(request.traffic_class)
        queue.requests[request.number] = request
        queue.streams += request.n
        queue.tokens += request.n * request.prompt_tokens

    def remove(self, request: Request) -> None:
        """Remove a request that has a token or has ended; without effect if it is not queued."""
        queue = self.of(request.traffic_class)
        if queue.requests.pop(request.number, None) is not None:
            queue.streams -= request.n
            queue.tokens -= request.n * request.prompt_tokens

    def full(self, rule: ClassRule, streams: int, tokens: int) -> bool:
        """Whether a class's own bounds leave no room for so many more."""
        queue = self.of(rule.name)
        return (rule.queue_requests_max is not None and queue.streams + streams > rule.queue_requests_max) or (
            rule.queue_tokens_max is not None and queue.tokens + tokens > rule.queue_tokens_max
        )

    def victims(self, policy: TenantPolicy, rank: int, wanted: UncountedWork) -> list[Request]:
        """The requests to shed so that so much becomes free for a class of this rank; none when that cannot be had.

        The lowest class first and the newest in it: those who have waited longest are the next to be served.
        """
        rules = [policy.classes[name] for name in self._queues if name in policy.classes]
        lower = sorted((each for each in rules if each.rank < rank and not each.isolated), key=lambda each: each.rank)
        found: list[Request] = []
        streams = tokens = 0
        for rule in lower:
            for request in reversed(self.of(rule.name).requests.values()):
                if streams >= wanted.requests and tokens >= wanted.tokens:
                    return found
                found.append(request)
                streams += request.unfinished
                tokens += request.unfinished * request.prompt_tokens
        return found if streams >= wanted.requests and tokens >= wanted.tokens else []

    def check(self) -> None:
        """Assert that the counts of each queue are those of its requests."""
        for queue in self._queues.values():
            assert queue.streams == sum(each.n for each in queue.requests.values())
            assert queue.tokens == sum(each.n * each.prompt_tokens for each in queue.requests.values())
