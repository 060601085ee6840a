"""Which numbers requests had that clients know by their own ids: for people who ask what a request waited for.

Bounded: the last NAMES_KEPT accepted, and the last refused as often.
"""

from typing import Any, Final

from noria.services.admission.core.events import AcceptedNote, Note, RefusedNote

NAMES_KEPT: Final = 8192


class Names:
    """Ids of accepted and refused requests, the newest under each id."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._refused: dict[str, str] = {}

    def write(self, note: Note) -> None:
        """Hear what admission did."""
        match note:
            case AcceptedNote():
                _keep(self._numbers, note.id, note.number)
                self._refused.pop(note.id, None)
            case RefusedNote():
                _keep(self._refused, note.id, note.code.value)
            case _:
                pass

    def answer(self, about: str) -> dict[str, Any]:
        """The number of a request, and whether it was refused."""
        number, code = self._numbers.get(about), self._refused.get(about)
        why = [f"request {about} was refused when it was last sent: {code}"] if code is not None else []
        return {"numbers": [] if number is None else [number], "why": why}


def _keep(names: "dict[str, Any]", name: str, value: object) -> None:
    names.pop(name, None)
    names[name] = value
    if len(names) > NAMES_KEPT:
        del names[next(iter(names))]
