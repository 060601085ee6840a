"""Server-sent events as bytes, and the position in a stream that an event carries as its `id:`.

A reader whose stream broke sends the last id back as `Last-Event-ID` and gets the rest. An id has one part for each
choice, in order, separated by commas: `-` for a choice of which nothing was sent yet, else `attempt.tokens.characters`,
followed by `.end` once the choice's end was sent.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from noria.services.gateway.api.errors import invalid

LAST_EVENT_HEADER: Final = "last-event-id"
_PART: Final = re.compile(r"-|(\d{1,9})\.(\d{1,9})\.(\d{1,9})(\.end)?", re.ASCII)
# Line ends to Unicode, and to clients that split decoded text by it (httpx's `iter_lines` among them), though not to the
# format; as escapes they mean the same within JSON. The other such characters are escaped in JSON anyway.
_LINE_ENDS: Final = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")
_ESCAPES: Final = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}


class EventPosition(msgspec.Struct, frozen=True):
    """How much of one choice was sent: attempt, tokens and characters.

    begun: its first chunk was sent. ended: its last chunk was sent.
    """

    attempt: int = 0
    tokens: int = 0
    characters: int = 0
    begun: bool = False
    ended: bool = False


def encode_event(data: bytes, position: str = "") -> bytes:
    """Encode one event. data: JSON in one line. position: becomes the event's id, unless empty."""
    name = b"id: " + position.encode() + b"\n" if position else b""
    return name + b"data: " + _LINE_ENDS.sub(lambda found: _ESCAPES[found[0]], data) + b"\n\n"


def format_positions(positions: Sequence[EventPosition]) -> str:
    """Format the positions of all choices as an event id."""
    return ",".join(map(_format_position, positions))


def parse_positions(text: str, choices: int) -> list[EventPosition]:
    """Parse the positions in a Last-Event-ID; an empty one means the start of the stream. Raises HttpError 400."""
    if not text:
        return [EventPosition()] * choices
    parts = [_PART.fullmatch(part) for part in text.split(",", choices)]
    found = [match for match in parts if match is not None]
    if len(found) != choices or len(parts) != choices:
        raise invalid(
            f"Last-Event-ID is not an id of an event of this stream, which has {choices} choices", "Last-Event-ID"
        )
    return [_parse_position(match) for match in found]


def _format_position(position: EventPosition) -> str:
    if not position.begun:
        return "-"
    end = ".end" if position.ended else ""
    return f"{position.attempt}.{position.tokens}.{position.characters}{end}"


def _parse_position(part: "re.Match[str]") -> EventPosition:
    if part[1] is None:
        return EventPosition()
    return EventPosition(int(part[1]), int(part[2]), int(part[3]), begun=True, ended=part[4] is not None)
