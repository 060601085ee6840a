"""The waiting requests of one tenant in one class: by age, those with a common beginning together.

After a request was placed, the oldest that begins like it goes next, so that they share its pages while these are hot. After
ROW_MAX in a row the oldest of all goes, whatever it begins with, so that nobody waits for ever. Tenants are charged alike
whichever of their requests goes, so that this changes nothing between tenants.
"""

from typing import Final

from noria.services.scheduler.core.policy.ranked_heap import RankedHeap
from noria.services.scheduler.core.state.request import Request

# Long enough to be more than a template's preamble, short enough to compare at once.
BEGINNING_TOKENS: Final = 64
ROW_MAX: Final = 8

_PromptStart = tuple[bytes, tuple[int, ...]]


class TenantQueue:
    """Requests by age and by beginning. A beginning that only one has costs nothing to others."""

    def __init__(self) -> None:
        self._line = RankedHeap[Request]()
        self._alike: dict[_PromptStart, RankedHeap[Request]] = {}
        self._placed: _PromptStart | None = None
        self._row = 0

    def __len__(self) -> int:
        return len(self._line)

    def add(self, request: Request) -> None:
        """Let a request join by age; one that was rotated joins behind those that waited then."""
        begun_ns, number = request.asked.seniority
        back = request.cache.host is not None and not request.billing.rotated_ns
        rank = (not back, max(begun_ns, request.billing.rotated_ns), number)
        self._line.add(request, rank)
        if not request.billing.rotated_ns:
            self._alike.setdefault(_beginning(request), RankedHeap[Request]()).add(request, rank)

    def remove(self, request: Request) -> None:
        """Let a request leave."""
        self._line.remove(request)
        if request.billing.rotated_ns:
            return
        beginning = _beginning(request)
        line = self._alike[beginning]
        line.remove(request)
        if not len(line):
            del self._alike[beginning]

    def first(self) -> Request | None:
        """The request whose turn is next; None without any."""
        if self._placed is not None and self._row < ROW_MAX:
            line = self._alike.get(self._placed)
            if line is not None:
                return line.first()
        return self._line.first()

    def placed(self, request: Request) -> None:
        """Note that a request was given a slot."""
        beginning = _beginning(request)
        self._row = self._row + 1 if beginning == self._placed else 1
        self._placed = beginning

    def check(self, requests: set[Request]) -> None:
        """Raises AssertionError when it does not hold exactly these requests, each in both orders."""
        self._line.check(requests)
        young = {each for each in requests if not each.billing.rotated_ns}
        assert sum(map(len, self._alike.values())) == len(young)
        for beginning, line in self._alike.items():
            line.check({each for each in young if _beginning(each) == beginning})


def _beginning(request: Request) -> _PromptStart:
    submission = request.asked.submission
    return submission.salt, submission.prompt_ids[:BEGINNING_TOKENS]
