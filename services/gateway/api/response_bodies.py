"""Response bodies of OpenAI's API: complete objects and stream chunks, for chat and for plain completions."""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from noria.client import Choice, Forecast, Logprobs
from noria.services.gateway.api.logprobs import ChatLogprobs, CompletionLogprobs, chat_logprobs, completion_logprobs

_JSON_ENCODER: Final = msgspec.json.Encoder()


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many of the prompt's tokens came from the prefix cache."""

    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """The tokens that a request used."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatMessageBody(msgspec.Struct, frozen=True):
    """The delta of a chat chunk, or the message of a complete chat choice."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    refusal: msgspec.UnsetType | None = msgspec.UNSET


class FailureBody(msgspec.Struct, frozen=True):
    """Why a background request failed."""

    code: str
    message: str


class ChoiceBody(msgspec.Struct, frozen=True):
    """One choice of a response or chunk, chat or completion. stop_reason: the matched stop string or token id, as in vLLM."""

    index: int
    delta: ChatMessageBody | msgspec.UnsetType = msgspec.UNSET
    message: ChatMessageBody | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: ChatLogprobs | CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class AnswerBody(msgspec.Struct, frozen=True):
    """A complete answer or one chunk of it. status, error: only for background requests."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChoiceBody, ...]
    usage: UsageBody | msgspec.UnsetType | None = msgspec.UNSET
    status: str | msgspec.UnsetType = msgspec.UNSET
    error: FailureBody | msgspec.UnsetType | None = msgspec.UNSET


class ResponseFormat(Protocol):
    """Formats choices for one of the two endpoints.

    prefix: of response ids. full_object, chunk_object: values of the field `object`.
    """

    prefix: str
    full_object: str
    chunk_object: str

    def first_chunk(self, index: int, echo: str) -> ChoiceBody | None:
        """The chunk of a choice that is sent before any token, or None."""

    def chunk(self, index: int, text: str, logprobs: Sequence[Logprobs]) -> ChoiceBody:
        """A chunk with new text of a choice."""

    def last_chunk(self, index: int, finish: str, stop_reason: str | int | None) -> ChoiceBody:
        """The last chunk of a choice: its finish reason without text."""

    def full_choice(self, index: int, echo: str, choice: Choice, stop_reason: str | int | None) -> ChoiceBody:
        """A complete choice."""


class ChatFormat:
    """The format of /v1/chat/completions."""

    prefix = "chatcmpl"
    full_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first_chunk(self, index: int, echo: str) -> ChoiceBody | None:
        """A delta with the role."""
        del echo
        return ChoiceBody(index, delta=ChatMessageBody("assistant", ""))

    def chunk(self, index: int, text: str, logprobs: Sequence[Logprobs]) -> ChoiceBody:
        """A delta with new text."""
        return ChoiceBody(index, delta=ChatMessageBody(content=text), logprobs=chat_logprobs(logprobs))

    def last_chunk(self, index: int, finish: str, stop_reason: str | int | None) -> ChoiceBody:
        """An empty delta."""
        return ChoiceBody(index, delta=ChatMessageBody(), finish_reason=finish, stop_reason=stop_reason)

    def full_choice(self, index: int, echo: str, choice: Choice, stop_reason: str | int | None) -> ChoiceBody:
        """A choice with the complete message."""
        del echo
        return ChoiceBody(
            index,
            message=ChatMessageBody("assistant", choice.text, None),
            logprobs=chat_logprobs(choice.logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=stop_reason,
        )


class CompletionFormat:
    """The format of /v1/completions."""

    prefix = "cmpl"
    full_object = "text_completion"
    chunk_object = "text_completion"

    def first_chunk(self, index: int, echo: str) -> ChoiceBody | None:
        """The prompt as text if it is to be echoed, else None."""
        return ChoiceBody(index, text=echo) if echo else None

    def chunk(self, index: int, text: str, logprobs: Sequence[Logprobs]) -> ChoiceBody:
        """A choice with new text."""
        return ChoiceBody(index, text=text, logprobs=completion_logprobs(logprobs))

    def last_chunk(self, index: int, finish: str, stop_reason: str | int | None) -> ChoiceBody:
        """A choice with empty text and the finish reason."""
        return ChoiceBody(index, text="", finish_reason=finish, stop_reason=stop_reason)

    def full_choice(self, index: int, echo: str, choice: Choice, stop_reason: str | int | None) -> ChoiceBody:
        """A choice with the complete text."""
        return ChoiceBody(
            index,
            text=echo + choice.text,
            logprobs=completion_logprobs(choice.logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=stop_reason,
        )


class ResponseSpec(msgspec.Struct, frozen=True):
    """How to format one answer. Choices are numbered prompt by prompt, `choices` for each prompt.

    created: Unix time in seconds. stop: the stop strings, needed for `stop_reason`. include_usage: a stream ends with a
    usage chunk. echoes: for each prompt, the text to return before its output.
    """

    response_format: ResponseFormat
    response_id: str
    request_id: str
    created: int
    choices: int
    stop: tuple[str, ...] = ()
    include_usage: bool = False
    echoes: tuple[str, ...] = ("",)


class PreviewBody(msgspec.Struct, frozen=True):
    """The body of a preview: predicted times in milliseconds from now, or why the request would be refused."""

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
    """Build the body of a preview response from admission's forecast."""
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
    """Build the usage object from token counts."""
    total = prompt_tokens + output_tokens
    return UsageBody(prompt_tokens, output_tokens, total, PromptTokensDetails(cached_tokens))


def stop_reason(matched: str, stop: Sequence[str]) -> str | int | None:
    """The value of `stop_reason`: the matched stop string, the stop token id, or None."""
    if not matched:
        return None
    return int(matched) if matched not in stop and matched.isdecimal() else matched


def encode(body: msgspec.Struct) -> bytes:
    """Encode a body as JSON."""
    return _JSON_ENCODER.encode(body)
