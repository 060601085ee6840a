"""Decodes token ids to text one id at a time, with the same result as decoding all of them at once.

Text that `push` returned never changes. Text that a later id could still change is held back; `flush` returns it as full
decoding would, with U+FFFD for broken bytes. The text of a stream is the tokenizer's decoding of its output ids, with one
exception: what decoding strips from the beginning of a text (Llama-style tokenizers take one space) is stripped only
when the prompt before it shows no text, since otherwise the output continues a text and does not begin one.
"""

import codecs
from collections.abc import Sequence
from typing import Final, Protocol

from noria.services.detokenizer.core.vocabulary import DecodingScheme, Vocabulary

REPLACEMENT: Final = "\ufffd"
_NOTHING: Final = frozenset[int]()
_CONTEXT_IDS: Final = 8
_BROKEN_IDS_MAX: Final = 3  # a character has at most four bytes
_HELD_IDS_MAX: Final = 64


class TextDecoder(Protocol):
    """Decodes the ids of one stream; there is one implementation for each `DecodingScheme`."""

    def push(self, token: int) -> str:
        """Take one id, return the text that is now final."""

    def flush(self) -> str:
        """Return the text that was held back, at the end of the stream."""


def make_decoder(vocabulary: Vocabulary, prompt_tail: Sequence[int], skip_special_tokens: bool) -> TextDecoder:
    """Make the decoder of a new stream that continues a prompt."""
    skipped = vocabulary.special if skip_special_tokens else _NOTHING
    match vocabulary.scheme:
        case DecodingScheme.BYTES:
            return ByteLevelDecoder(vocabulary.pieces, skipped)
        case DecodingScheme.FALLBACK:
            return ByteFallbackDecoder(vocabulary, prompt_tail, skipped)
        case DecodingScheme.WINDOW:
            return WindowDecoder(vocabulary, prompt_tail, skip_special_tokens)


class ByteLevelDecoder:
    """Decodes byte-level vocabularies as incremental UTF-8, replacing broken bytes by maximal subparts (Unicode 3.9)."""

    def __init__(self, pieces: Sequence[bytes], skipped: frozenset[int]) -> None:
        self._pieces = pieces
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take one id, return the text that is now final."""
        if token in self._skipped:
            return ""
        return self._utf8.decode(_bytes_of_id(self._pieces, token))

    def flush(self) -> str:
        """Return U+FFFD for an unfinished character, if there is one."""
        return self._utf8.decode(b"", final=True)


class ByteFallbackDecoder:
    """Decodes byte-fallback vocabularies: pieces of text, and runs of single bytes that are decoded together.

    A run with one broken byte decodes to U+FFFD for each of its bytes, even those that were whole characters, so
    nothing of it is final before it is over.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_tail: Sequence[int], skipped: frozenset[int]) -> None:
        self._pieces = vocabulary.pieces
        self._byte_ids = vocabulary.byte_ids
        self._skipped = skipped
        self._run = bytearray()
        shown = any(token not in skipped and _bytes_of_id(self._pieces, token) for token in prompt_tail)
        self._strip = 0 if shown else vocabulary.strip_left

    def push(self, token: int) -> str:
        """Take one id, return the text that is now final."""
        if token in self._skipped:
            return ""
        piece = _bytes_of_id(self._pieces, token)
        if token in self._byte_ids:
            self._run += piece
            return ""
        if not 0 <= token < len(self._pieces):
            return ""
        text = piece.decode()
        if self._run:
            text = self._close_run() + text
        return self._strip_left(text) if self._strip and text else text

    def flush(self) -> str:
        """Return the text of the run of bytes under way."""
        return self._strip_left(self._close_run())

    def _close_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return REPLACEMENT * len(run)

    def _strip_left(self, text: str) -> str:
        kept = text
        while self._strip and kept.startswith(" "):
            kept = kept[1:]
            self._strip -= 1
        if kept:
            self._strip = 0
        return kept


class WindowDecoder:
    """Decodes with any other tokenizer: each id after the few before it, taking what the text grew by.

    Exact for decoders in which an id's text depends on the ids next to it and on whether it is the first.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_tail: Sequence[int], skip_special_tokens: bool) -> None:
        self._decode = vocabulary.decode
        self._byte_ids = vocabulary.byte_ids
        self._skip = skip_special_tokens
        self._skipped = vocabulary.special if skip_special_tokens else _NOTHING
        self._context = [token for token in prompt_tail if token not in self._skipped][-_CONTEXT_IDS:]
        self._known = self._decode(self._context, self._skip)
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """Take one id, return the text that is now final."""
        if token in self._skipped:
            return ""
        self._held.append(token)
        if token in self._byte_ids:
            return ""
        text = self._decode([*self._context, *self._held], self._skip)
        full = len(self._held) > _HELD_IDS_MAX
        if not full and not text.startswith(self._known):
            return ""
        if text.endswith(REPLACEMENT) and len(self._held) <= _BROKEN_IDS_MAX:
            return ""
        return self._take(text)

    def flush(self) -> str:
        """Return the text that the held ids add."""
        return self._take(self._decode([*self._context, *self._held], self._skip)) if self._held else ""

    def _take(self, text: str) -> str:
        new = text[len(self._known) :]
        self._context = [*self._context, *self._held][-_CONTEXT_IDS:]
        self._known = self._decode(self._context, self._skip)
        self._held.clear()
        return new


def _bytes_of_id(pieces: Sequence[bytes], token: int) -> bytes:
    """The bytes of an id; empty for ids outside the vocabulary, as in tokenizers."""
    return pieces[token] if 0 <= token < len(pieces) else b""
