"""Finds the number of a request by the id that its client gave it, for people who ask what the request waited for.

The gateway marks the ids that come with an API key, so that two tenants may use the same; whoever asks knows only the
unmarked part. Bounded: the last ACCEPTED_KEPT names of accepted requests, and REFUSED_KEPT of refused ones.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from noria.services.admission.core.state.events import (
    AcceptedLogEntry,
    RecoveredLogEntry,
    RefusedLogEntry,
    RequestLogEntry,
)

ACCEPTED_KEPT: Final = 8192
REFUSED_KEPT: Final = 2048
_MARKED: Final = re.compile(r"(.+)~[0-9a-f]{16}", re.DOTALL)


class RequestNames:
    """Ids of accepted and refused requests, the newest under each id."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._refused: dict[str, str] = {}

    def write(self, entry: RequestLogEntry) -> None:
        """Notes the names in a log entry."""
        match entry:
            case AcceptedLogEntry() | RecoveredLogEntry():
                for name in _names(entry.id):
                    _keep(self._numbers, name, entry.number, ACCEPTED_KEPT)
                    self._refused.pop(name, None)
            case RefusedLogEntry():
                for name in _names(entry.id):
                    _keep(self._refused, name, entry.code.value, REFUSED_KEPT)
            case _:
                pass

    def answer(self, about: str) -> dict[str, Any]:
        """The number of a request, and whether it was refused."""
        number, code = self._numbers.get(about), self._refused.get(about)
        why = [f"request {about} was refused when it was last sent: {code}"] if code is not None else []
        return {"numbers": [] if number is None else [number], "why": why}


def _names(request: str) -> Iterator[str]:
    """An id, and what its caller calls it."""
    yield request
    marked = _MARKED.fullmatch(request)
    if marked is not None:
        yield marked[1]


def _keep(names: "dict[str, Any]", name: str, value: object, kept: int) -> None:
    names.pop(name, None)
    names[name] = value
    if len(names) > kept:
        del names[next(iter(names))]
