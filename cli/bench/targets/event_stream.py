"""Parses server-sent events of an OpenAI-compatible answer from bytes as they arrive."""

from collections.abc import Iterator
from typing import Final

import msgspec

DONE: Final = b"[DONE]"


class ReportedUsage(msgspec.Struct, frozen=True):
    """Token counts that the server reports with the last chunk."""

    class PromptTokensDetails(msgspec.Struct, frozen=True):
        """How many of the prompt's tokens came from a prefix cache."""

        cached_tokens: int | None = None

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class StreamDelta(msgspec.Struct, frozen=True):
    """The new text of a chat answer; reasoning counts as output too."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class StreamChoice(msgspec.Struct, frozen=True):
    """One choice of a chunk, of either endpoint: text of completions, or a delta of chat."""

    text: str | None = None
    delta: StreamDelta | None = None
    finish_reason: str | None = None

    @property
    def has_output(self) -> bool:
        """Whether the chunk stands for tokens: it has text, or is an empty piece of a completion, which a special token makes."""
        if self.delta is not None:
            return bool(self.delta.content or self.delta.reasoning_content or self.delta.reasoning)
        return bool(self.text) or (self.text is not None and self.finish_reason is None)


class StreamError(msgspec.Struct, frozen=True):
    """An error that the server reports inside the stream."""

    message: str = ""


class CompletionChunk(msgspec.Struct, frozen=True):
    """One server-sent event of a streamed answer."""

    choices: tuple[StreamChoice, ...] = ()
    usage: ReportedUsage | None = None
    error: StreamError | str | None = None


class EventStreamParser:
    """Splits bytes into events; keeps the unfinished last line until the rest of it arrives."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is complete now."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
