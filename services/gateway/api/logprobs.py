"""Log-probabilities as OpenAI's API shows them: one shape for chat, another for plain completions.

There is one entry for each token counted as used, an end token's included, as in vLLM. A token's text is its bytes as UTF-8;
those of a part of a character show as U+FFFD, and `bytes` says what they are.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from noria.client import Logprobs

LOGPROB_MIN: Final = -9999.0
"""What stands for less, as in OpenAI's API: JSON has no infinity."""


class TopLogprob(msgspec.Struct, frozen=True):
    """A likely token."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token of the answer."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Of a chat choice, or of a chunk's delta."""

    content: tuple[TokenLogprob, ...]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Of a completion's choice. top_logprobs holds the token itself, too; text_offset counts characters of the answer."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


def chat_logprobs(told: Sequence[Logprobs]) -> ChatLogprobs | None:
    """Those of some tokens; None of none."""
    return ChatLogprobs(tuple(map(_content, told))) if told else None


def text_logprobs(told: Sequence[Logprobs]) -> TextLogprobs | None:
    """Those of some tokens; None of none."""
    if not told:
        return None
    return TextLogprobs(
        tokens=tuple(_text(each.token) for each in told),
        token_logprobs=tuple(_shown(each.logprob) for each in told),
        top_logprobs=tuple(map(_top, told)),
        text_offset=tuple(each.character for each in told),
    )


def _content(told: Logprobs) -> TokenLogprob:
    top = tuple(TopLogprob(_text(each.token), _shown(each.logprob), tuple(each.token)) for each in told.top)
    return TokenLogprob(_text(told.token), _shown(told.logprob), tuple(told.token), top)


def _top(told: Logprobs) -> dict[str, float]:
    found: dict[str, float] = {}
    for token, logprob in (*((each.token, each.logprob) for each in told.top), (told.token, told.logprob)):
        found.setdefault(_text(token), _shown(logprob))  # of two that read the same, the likelier
    return found


def _text(token: bytes) -> str:
    return token.decode(errors="replace")


def _shown(logprob: float) -> float:
    return logprob if logprob >= LOGPROB_MIN else LOGPROB_MIN
