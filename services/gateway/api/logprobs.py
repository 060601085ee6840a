"""Log-probabilities in the two forms of OpenAI's API: one for chat, one for plain completions.

There is one entry for each token counted as used, an end token's included, as in vLLM. A token's text is its bytes as UTF-8;
parts of a character become U+FFFD, and `bytes` holds them exactly.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from noria.client import Logprobs

LOGPROB_MIN: Final = -9999.0
"""The lowest value returned, as in OpenAI's API, because JSON has no infinity."""


class TopLogprobEntry(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: tuple[int, ...]


class LogprobEntry(msgspec.Struct, frozen=True):
    """A token of the answer, with the likeliest tokens at its position."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[TopLogprobEntry, ...]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a chat choice or of one of its chunks."""

    content: tuple[LogprobEntry, ...]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The log-probabilities of a plain completion's choice.

    top_logprobs: also holds the token itself. text_offset: in characters of the answer.
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


def chat_logprobs(logprobs: Sequence[Logprobs]) -> ChatLogprobs | None:
    """Format log-probabilities for a chat choice; None for an empty sequence."""
    return ChatLogprobs(tuple(map(_chat_entry, logprobs))) if logprobs else None


def completion_logprobs(logprobs: Sequence[Logprobs]) -> CompletionLogprobs | None:
    """Format log-probabilities for a completion choice; None for an empty sequence."""
    if not logprobs:
        return None
    return CompletionLogprobs(
        tokens=tuple(_text(each.token) for each in logprobs),
        token_logprobs=tuple(_bounded(each.logprob) for each in logprobs),
        top_logprobs=tuple(map(_top_by_text, logprobs)),
        text_offset=tuple(each.character for each in logprobs),
    )


def _chat_entry(logprobs: Logprobs) -> LogprobEntry:
    top = tuple(TopLogprobEntry(_text(each.token), _bounded(each.logprob), tuple(each.token)) for each in logprobs.top)
    return LogprobEntry(_text(logprobs.token), _bounded(logprobs.logprob), tuple(logprobs.token), top)


def _top_by_text(logprobs: Logprobs) -> dict[str, float]:
    found: dict[str, float] = {}
    for token, logprob in (*((each.token, each.logprob) for each in logprobs.top), (logprobs.token, logprobs.logprob)):
        found.setdefault(_text(token), _bounded(logprob))  # of two that read the same, the likelier
    return found


def _text(token: bytes) -> str:
    return token.decode(errors="replace")


def _bounded(logprob: float) -> float:
    return logprob if logprob >= LOGPROB_MIN else LOGPROB_MIN
