"""Server-sent events of an OpenAI-compatible answer, cut out of bytes as they come."""

from collections.abc import Iterator
from typing import Final

import msgspec

DONE: Final = b"[DONE]"


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the server counted them."""

    class Details(msgspec.Struct, frozen=True):
        """Of the prompt's tokens."""

        cached_tokens: int | None = None

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Delta(msgspec.Struct, frozen=True):
    """News of a chat answer; thinking aloud is output too."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """News of one choice, of either endpoint."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def brings_output(self) -> bool:
        """Whether it stands for tokens: text, or an empty piece of a plain completion, which a special token makes."""
        if self.delta is not None:
            return bool(self.delta.content or self.delta.reasoning_content or self.delta.reasoning)
        return bool(self.text) or (self.text is not None and self.finish_reason is None)


class Fault(msgspec.Struct, frozen=True):
    """An error's message."""

    message: str = ""


class Chunk(msgspec.Struct, frozen=True):
    """One event."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    error: Fault | str | None = None


class EventReader:
    """Keeps what has come of an unfinished line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of every event line that is complete now."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
