"""What decoding needs to know of a tokenizer, handed in from outside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Scheme(Enum):
    """How ids become text.

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
    """One tokenizer, as its text side.

    pieces: the bytes of each id (unused by WINDOW). special: ids that `skip_special_tokens` skips. byte_ids: ids that
    stand for one byte of a run. strip_left: spaces that decoding takes from the beginning of a text. decode: the
    tokenizer's own decoding of ids, for WINDOW alone.
    """

    scheme: Scheme
    pieces: Sequence[bytes]
    special: frozenset[int] = frozenset()
    byte_ids: frozenset[int] = frozenset()
    strip_left: int = 0
    decode: Callable[[Sequence[int], bool], str] = field(default=_no_window)

    def bytes_of(self, token: int) -> bytes:
        """What an id stands for by itself, special or not; nothing out of vocabulary."""
        if self.scheme is Scheme.WINDOW:
            return self.decode((token,), False).encode()
        return self.pieces[token] if 0 <= token < len(self.pieces) else b""
