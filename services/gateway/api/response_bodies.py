"""Answers as OpenAI's API defines them: whole objects and chunks, for chat and for plain completions."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from noria.client import Choice, Forecast, Logprobs
from noria.services.gateway.api.logprobs import ChatLogprobs, TextLogprobs, chat_logprobs, text_logprobs

_ENCODER: Final = msgspec.json.Encoder()


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens, how many came from the cache."""

    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """Tokens used."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Piece(msgspec.Struct, frozen=True):
    """A chat chunk's delta, or the message of a whole chat choice."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET


class Failure(msgspec.Struct, frozen=True):
    """Why a background request has no whole answer."""

    code: str
    message: str


class ChoiceBody(msgspec.Struct, frozen=True):
    """A choice of any of the four objects; `stop_reason` is vLLM's name for what matched."""

    index: int
    delta: Piece | msgspec.UnsetType = msgspec.UNSET
    message: Piece | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: ChatLogprobs | TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class AnswerBody(msgspec.Struct, frozen=True):
    """A whole answer or one chunk of it. status, error: of a background request, as it stands."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChoiceBody, ...]
    usage: UsageBody | msgspec.UnsetType | None = msgspec.UNSET
    status: str | msgspec.UnsetType = msgspec.UNSET
    error: Failure | msgspec.UnsetType | None = msgspec.UNSET


class Shape(Protocol):
    """What differs between the endpoints."""

    prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, index: int, echo: str) -> ChoiceBody | None:
        """What a stream says of a choice before any token, or None."""

    def chunk(self, index: int, text: str, told: Sequence[Logprobs]) -> ChoiceBody:
        """News of a choice."""

    def end(self, index: int, finish: str, stop_reason: str | int | None) -> ChoiceBody:
        """The last chunk of a choice, without text."""

    def whole(self, index: int, echo: str, choice: Choice, stop_reason: str | int | None) -> ChoiceBody:
        """A finished choice."""


class ChatShape:
    """/v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int, echo: str) -> ChoiceBody | None:
        """The role."""
        del echo
        return ChoiceBody(index, delta=Piece("assistant", ""))

    def chunk(self, index: int, text: str, told: Sequence[Logprobs]) -> ChoiceBody:
        """A delta."""
        return ChoiceBody(index, delta=Piece(content=text), logprobs=chat_logprobs(told))

    def end(self, index: int, finish: str, stop_reason: str | int | None) -> ChoiceBody:
        """An empty delta."""
        return ChoiceBody(index, delta=Piece(), finish_reason=finish, stop_reason=stop_reason)

    def whole(self, index: int, echo: str, choice: Choice, stop_reason: str | int | None) -> ChoiceBody:
        """A message."""
        del echo
        return ChoiceBody(
            index,
            message=Piece("assistant", choice.text, None),
            logprobs=chat_logprobs(choice.logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=stop_reason,
        )


class TextShape:
    """/v1/completions."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, index: int, echo: str) -> ChoiceBody | None:
        """The prompt, if it is to be echoed."""
        return ChoiceBody(index, text=echo) if echo else None

    def chunk(self, index: int, text: str, told: Sequence[Logprobs]) -> ChoiceBody:
        """Text."""
        return ChoiceBody(index, text=text, logprobs=text_logprobs(told))

    def end(self, index: int, finish: str, stop_reason: str | int | None) -> ChoiceBody:
        """No text."""
        return ChoiceBody(index, text="", finish_reason=finish, stop_reason=stop_reason)

    def whole(self, index: int, echo: str, choice: Choice, stop_reason: str | int | None) -> ChoiceBody:
        """The whole text."""
        return ChoiceBody(
            index,
            text=echo + choice.text,
            logprobs=text_logprobs(choice.logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=stop_reason,
        )


class Form(msgspec.Struct, frozen=True):
    """How an answer is to look. Choices are numbered prompt by prompt, `choices` for each; echoes: a text before each.

    include_usage: whether a stream ends with a usage chunk. stop: the stop strings, by which `stop_reason` is told.
    """

    shape: Shape
    response_id: str
    request_id: str
    created: int
    choices: int
    stop: tuple[str, ...] = ()
    include_usage: bool = False
    echoes: tuple[str, ...] = ("",)


class PreviewBody(msgspec.Struct, frozen=True):
    """What would become of a request: its predicted course in milliseconds from now, or why it would be refused."""

    admitted: bool
    traffic_class: str
    prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    expected_output_tokens: int | msgspec.UnsetType = msgspec.UNSET
    start_ms: float | msgspec.UnsetType = msgspec.UNSET
    first_token_ms: float | msgspec.UnsetType = msgspec.UNSET
    finish_ms: float | msgspec.UnsetType = msgspec.UNSET
    code: str | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    retry_after_ms: int | msgspec.UnsetType | None = msgspec.UNSET


def preview_body(forecast: Forecast) -> PreviewBody:
    """The answer to a preview."""
    if not forecast.admitted:
        code = forecast.code.value if forecast.code is not None else ""
        return PreviewBody(
            False, forecast.traffic_class, code=code, reason=forecast.reason, retry_after_ms=forecast.retry_after_ms
        )
    return PreviewBody(
        True,
        forecast.traffic_class,
        forecast.prompt_tokens,
        forecast.output_tokens,
        forecast.start_ms,
        forecast.first_token_ms,
        forecast.finish_ms,
    )


def usage_body(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> UsageBody:
    """Tokens used, summed up."""
    total = prompt_tokens + output_tokens
    return UsageBody(prompt_tokens, output_tokens, total, PromptDetails(cached_tokens))


def stop_reason(matched: str, stop: Sequence[str]) -> str | int | None:
    """The stop string, the stop token id, or None."""
    if not matched:
        return None
    return int(matched) if matched not in stop and matched.isdecimal() else matched


def encode(body: msgspec.Struct) -> bytes:
    """JSON."""
    return _ENCODER.encode(body)
