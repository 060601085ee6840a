"""Where a reader of a stream stands: the `id:` of its last event, which it may send back as `Last-Event-ID`.

One part for each choice, in their order, separated by commas: `-` for a choice of which nothing was said yet, else
`attempt.tokens.characters`, with `.end` after them once its end was told.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from noria.services.gateway.api.errors import invalid

HEADER: Final = "last-event-id"
_PART: Final = re.compile(r"-|(\d{1,9})\.(\d{1,9})\.(\d{1,9})(\.end)?", re.ASCII)


class Position(msgspec.Struct, frozen=True):
    """What was sent of one choice. begun: that it exists; ended: how it ended."""

    attempt: int = 0
    tokens: int = 0
    characters: int = 0
    begun: bool = False
    ended: bool = False


def written(positions: Sequence[Position]) -> str:
    """The text of all choices' positions."""
    return ",".join(map(_written, positions))


def read(text: str, choices: int) -> list[Position]:
    """The positions in a header; of a stream's beginning where it is empty. Raises HttpError 400."""
    if not text:
        return [Position()] * choices
    parts = [_PART.fullmatch(part) for part in text.split(",", choices)]
    found = [match for match in parts if match is not None]
    if len(found) != choices or len(parts) != choices:
        raise invalid(
            f"Last-Event-ID is not an id of an event of this stream, which has {choices} choices", "Last-Event-ID"
        )
    return [_read(match) for match in found]


def _written(position: Position) -> str:
    if not position.begun:
        return "-"
    end = ".end" if position.ended else ""
    return f"{position.attempt}.{position.tokens}.{position.characters}{end}"


def _read(part: "re.Match[str]") -> Position:
    if part[1] is None:
        return Position()
    return Position(int(part[1]), int(part[2]), int(part[3]), begun=True, ended=part[4] is not None)
