"""Who may have killed the executor: requests that were in a step in flight when it died, or in a step that failed.

Suspects run again apart from everybody else, in halves; a half that fails again is halved again, behind the others, so
that innocents make tokens in between. Any new token clears a request. Only who fails alone is condemned, and not at the
first time: an executor may be killed by somebody else just then.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from noria.services.scheduler.core.request import Request

ALONE_MAX: Final = 2
"""Failures alone, without a token in between, that condemn a request."""


class Suspects:
    """Groups of suspects; the first one runs next. trial: whether the step planned last was of suspects alone."""

    def __init__(self) -> None:
        self._groups: deque[dict[Request, None]] = deque()
        self.trial = False

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    @property
    def group(self) -> list[Request]:
        """Who runs next, apart from all others; nobody when nobody is suspected."""
        return list(self._groups[0]) if self._groups else []

    def blame(self, accused: list[Request], *, alone: bool) -> list[Request]:
        """These were in what failed; returns those that are condemned by it.

        alone: nobody else was. Who did so as a suspect has failed on its own.
        """
        if alone and len(accused) == 1 and accused[0].suspected:
            accused[0].failures_alone += 1
            if accused[0].failures_alone >= ALONE_MAX:
                return accused
        for request in accused:
            self.drop(request)
            request.suspected = True
        half = -(-len(accused) // 2)
        self._groups += [dict.fromkeys(part) for part in (accused[:half], accused[half:]) if part]
        return []

    def drop(self, request: Request) -> None:
        """It has made a token, or has ended: nobody suspects it."""
        if request.suspected:
            request.suspected = False
            for group in self._groups:
                group.pop(request, None)
            self._groups = deque(group for group in self._groups if group)

    def clear(self, request: Request) -> None:
        """It has made a token: what it failed in before is forgiven."""
        self.drop(request)
        request.failures_alone = 0

    def check(self, requests: Iterable[Request]) -> None:
        """Every suspect is in one group, and nobody else."""
        suspected = [request for group in self._groups for request in group]
        assert len(suspected) == len(set(suspected)), "a suspect is in two groups"
        assert set(suspected) == {request for request in requests if request.suspected}
        assert all(self._groups)
