"""Requests that may have killed the executor: they were in a step in flight when it died, or in a step that failed.

Suspects run again apart from everybody else, in halves; a half that fails again is halved again, behind the others, so that
innocents make tokens in between. Any new token clears a request. Only who fails alone is condemned, and not at the first time:
an executor may be killed by somebody else just then. A scheduler reports whom it suspects, so that its successor goes on where
it was: nobody becomes innocent by its death.
"""

from collections.abc import Iterable
from typing import Final

from noria.proto.scheduling import Doubt, Suspect, Suspected
from noria.services.scheduler.core.state.request import Request

ALONE_MAX: Final = 2
"""Failures alone, without a token in between, that condemn a request."""


class Suspects:
    """Requests that may have killed the executor, in groups that run apart until the one that does is found.

    The first group runs next. trial: whether the step planned last had suspects alone.
    """

    def __init__(self) -> None:
        self._groups: dict[int, dict[Request, None]] = {}
        self._next = 1
        self._standing: Suspected | None = None
        self.trial = False

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    @property
    def group(self) -> list[Request]:
        """The suspects that run next, apart from all others; empty when nobody is suspected."""
        return list(self._groups[min(self._groups)]) if self._groups else []

    @property
    def suspected_now(self) -> Suspected:
        """Everybody who is suspected, as a message."""
        if self._standing is None:
            self._standing = Suspected(
                tuple(
                    Suspect(each.stream, Doubt(number, each.suspicion.failures_alone, each.suspicion.suspected_at))
                    for number, group in sorted(self._groups.items())
                    for each in group
                )
            )
        return self._standing

    def resume(self, request: Request, doubt: Doubt) -> None:
        """Suspect a request that an earlier scheduler suspected and that has made no token since."""
        assert not request.suspicion.suspected
        request.suspicion.suspected = True
        request.suspicion.failures_alone, request.suspicion.suspected_at = doubt.failures_alone, doubt.output_tokens
        self._groups.setdefault(doubt.group, {})[request] = None
        self._next = max(self._next, doubt.group + 1)
        self._standing = None

    def blame(self, accused: list[Request], *, alone: bool) -> list[Request]:
        """Suspect requests that were in what failed; returns those that are condemned by it.

        alone: nobody else was in it. A suspect that was alone has failed on its own.
        """
        if alone and len(accused) == 1 and accused[0].suspicion.suspected:
            accused[0].suspicion.failures_alone += 1
            if accused[0].suspicion.failures_alone >= ALONE_MAX:
                return accused
        for request in accused:
            self.drop(request)
            request.suspicion.suspected = True
            request.suspicion.suspected_at = max(request.suspicion.suspected_at, len(request.progress.output))
        half = -(-len(accused) // 2)
        for part in (accused[:half], accused[half:]):
            if part:
                self._groups[self._next] = dict.fromkeys(part)
                self._next += 1
        self._standing = None
        return []

    def drop(self, request: Request) -> None:
        """Suspect a request no longer: it has made a token, or has ended."""
        if request.suspicion.suspected:
            request.suspicion.suspected = False
            for group in self._groups.values():
                group.pop(request, None)
            self._groups = {number: group for number, group in self._groups.items() if group}
            self._standing = None

    def clear(self, request: Request) -> None:
        """Forgive a request what it failed in: it has made a token beyond those that it had."""
        self.drop(request)
        request.suspicion.failures_alone = 0

    def check(self, requests: Iterable[Request]) -> None:
        """Raises AssertionError unless every suspect is in one group, and nobody else is."""
        suspected = [request for group in self._groups.values() for request in group]
        assert len(suspected) == len(set(suspected)), "a suspect is in two groups"
        assert set(suspected) == {request for request in requests if request.suspicion.suspected}
        assert all(self._groups.values())
        assert all(len(request.progress.output) <= request.suspicion.suspected_at for request in suspected), (
            "a token clears"
        )
