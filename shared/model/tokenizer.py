"""The model's tokenizer without transformers: text to ids, ids to text, ids to bytes.

Decides how a model folder's `tokenizer.json` and `tokenizer_config.json` combine, as transformers' default tokenizer
class does: named special tokens are added; what surrounds a plain prompt is the post-processor's business alone, and
`add_bos_token` beside a tokenizer.json means nothing. Knows nothing of streams. Encoding is safe from several threads.
"""

import contextlib
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec
import tokenizers
from tokenizers import AddedToken

from noria.shared.errors import UserError

_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")  # what the library parses


class TokenBytesScheme(Enum):
    """How ids become text.

    BYTES: every id is a byte string, the text is their concatenation in UTF-8 (byte-level BPE).
    FALLBACK: an id is a text or a single byte; a run of bytes is one character string, or U+FFFD for each byte of it
    when the run as a whole is not UTF-8 (sentencepiece with byte fallback).
    WINDOW: neither; the text of an id is known only by decoding it after its neighbours.
    """

    BYTES = "bytes"
    FALLBACK = "fallback"
    WINDOW = "window"


class Tokenizer:
    """One model's tokenizer. Made by `Tokenizer.load`.

    vocabulary: one more than the largest id. special: text of each special token by id. scheme: how ids become text.
    strip_left: how many spaces decoding takes from the beginning of a text (Llama-style tokenizers take one).
    """

    def __init__(self, backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.named = _named(settings)
        _add_named(backend, self.named)
        self._backend = backend
        self._plain = tokenizers.Tokenizer.from_str(backend.to_str())
        self._plain.encode_special_tokens = True
        self._ids = backend.get_vocab(with_added_tokens=True)
        self.vocabulary: int = max(self._ids.values(), default=-1) + 1
        self.special: dict[int, str] = {
            number: token.content for number, token in backend.get_added_tokens_decoder().items() if token.special
        }
        self.scheme, self.strip_left, self._replaced = _token_bytes_scheme(backend)

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Read a model folder's tokenizer. Raises UserError when tokenizer.json is missing or broken."""
        path = Path(folder) / "tokenizer.json"
        try:
            data = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {path}: {error}; pull the model again or choose another") from error
        try:
            backend = tokenizers.Tokenizer.from_str(data)
        except Exception as error:  # the library raises bare Exception for whatever it cannot parse
            raise UserError(f"{path} is not a tokenizer: {error}; pull the model again") from error
        return cls(backend, read_settings(folder))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text in which special tokens are recognised.

        add_special_tokens: add what the model expects around a plain prompt, such as a beginning-of-sequence token.
        """
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text in which special tokens are ordinary characters; nothing is added."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids; ids out of vocabulary have none."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def byte_table(self) -> list[bytes | None]:
        """The bytes that each id stands for, special or not; empty for ids without a token; all None when the scheme is WINDOW."""
        empty = None if self.scheme is TokenBytesScheme.WINDOW else b""
        table: list[bytes | None] = [empty] * self.vocabulary
        if self.scheme is not TokenBytesScheme.WINDOW:
            for token, number in self._ids.items():
                table[number] = self._bytes_of(token)
        return table

    def byte_ids(self) -> frozenset[int]:
        """Ids that stand for a single byte of a run: `<0xNN>` tokens of byte-fallback vocabularies."""
        if self.scheme is TokenBytesScheme.BYTES:
            return frozenset()
        return frozenset(number for token, number in self._ids.items() if _BYTE_TOKEN.fullmatch(token))

    def _bytes_of(self, token: str) -> bytes:
        if self.scheme is TokenBytesScheme.BYTES:
            mapped = [_BYTE_OF.get(character) for character in token]
            # As the library does: a token with any character outside the byte alphabet (an added one) is itself.
            return token.encode() if None in mapped else bytes(byte for byte in mapped if byte is not None)
        if (match := _BYTE_TOKEN.fullmatch(token)) is not None:
            return bytes([int(match[1], 16)])
        for old, new in self._replaced:
            token = token.replace(old, new)
        return token.encode()


def read_settings(folder: str | Path) -> dict[str, Any]:
    """A folder's tokenizer_config.json, or nothing where it is absent. Raises UserError when it is broken."""
    path = Path(folder) / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"cannot read {path}: {error}; pull the model again or choose another") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; pull the model again or choose another")
    return content


def _named(settings: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in _NAMED:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _add_named(backend: tokenizers.Tokenizer, named: dict[str, str]) -> None:
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [token for token in dict.fromkeys(named.values()) if token not in present]
    if missing:
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])


def _token_bytes_scheme(backend: tokenizers.Tokenizer) -> tuple[TokenBytesScheme, int, tuple[tuple[str, str], ...]]:
    """The scheme that the decoder in tokenizer.json amounts to, its left strip, and its replacements."""
    decoder = msgspec.json.decode(backend.to_str()).get("decoder")
    steps = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder] if decoder else []
    kinds = [step["type"] for step in steps]
    if [kind for kind in kinds if kind != "Fuse"] == ["ByteLevel"]:
        return TokenBytesScheme.BYTES, 0, ()
    strip_left = 0
    replaced: list[tuple[str, str]] = []
    seen = ""
    with contextlib.suppress(KeyError):  # a pattern that is not a plain string needs the window
        for step in steps:
            match step["type"]:
                case "Replace" if seen == "":
                    replaced.append((step["pattern"]["String"], step["content"]))
                case "ByteFallback" if seen == "":
                    seen = "ByteFallback"
                case "Fuse" if seen == "ByteFallback":
                    seen = "Fuse"
                case "Strip" if seen == "Fuse" and step["stop"] == 0 and step["content"] == " ":
                    strip_left += int(step["start"])
                    seen = "Strip"
                case _:
                    return TokenBytesScheme.WINDOW, 0, ()
        if seen:
            return TokenBytesScheme.FALLBACK, strip_left, tuple(replaced)
    return TokenBytesScheme.WINDOW, 0, ()


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level vocabularies write for each byte (GPT-2, Radford et al. 2019)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF: Final = _byte_alphabet()
