"""The part of a tokenizer that decoding needs, as plain data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum


class DecodingScheme(Enum):
    """How a tokenizer turns ids into text.

    BYTES: the bytes of all ids, in a row, are the text in UTF-8.
    FALLBACK: an id is a text or one byte; a run of bytes is decoded as a whole once it is over.
    WINDOW: an id's text is known only by decoding it after its neighbours.
    """

    BYTES = "bytes"
    FALLBACK = "fallback"
    WINDOW = "window"


def _no_window(ids: Sequence[int], skip_special_tokens: bool) -> str:
    raise AssertionError("this vocabulary needs no window")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The decoding side of one tokenizer.

    pieces: the bytes of each id (unused by WINDOW). special: ids that `skip_special_tokens` skips. byte_ids: ids that
    stand for one byte of a run. strip_left: spaces that decoding takes from the beginning of a text. decode: the
    tokenizer's own decoding of ids, for WINDOW alone.
    """

    scheme: DecodingScheme
    pieces: Sequence[bytes]
    special: frozenset[int] = frozenset()
    byte_ids: frozenset[int] = frozenset()
    strip_left: int = 0
    decode: Callable[[Sequence[int], bool], str] = field(default=_no_window)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one id by itself, special or not; empty for ids outside the vocabulary."""
        if self.scheme is DecodingScheme.WINDOW:
            return self.decode((token,), False).encode()
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""
