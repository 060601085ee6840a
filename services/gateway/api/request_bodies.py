"""Request bodies of OpenAI's API with vLLM's extras: decoded to structs, and refused where not supported.

Unknown fields are ignored, as OpenAI-compatible servers do; known ones of the wrong type, or asking for what does not
exist here, are refused by name. Ranges are admission's business.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from starlette.requests import Request

from noria.client import Message
from noria.proto.sampling import parameters
from noria.services.gateway.api.errors import HttpError, invalid

PROMPTS_MAX: Final = 128
BODY_SAMPLING_PARAMETERS: Final = {
    name: parameter for name, parameter in parameters().items() if name not in ("max_tokens", "stop", "logprobs")
}
"""The sampling parameters that bodies carry as they are; OpenAI's API gives the others a form of their own."""
_ABSENT: Final = msgspec.Raw(b"")
_EMPTY_VALUES: Final = (b"", b"null", b"false", b"[]", b"{}", b"0", b"0.0", b"-0.0")


class StreamOptions(msgspec.Struct, frozen=True):
    """OpenAI's `stream_options`. include_usage: send a usage chunk at the end."""

    include_usage: bool = False


def _sampling_fields() -> list[tuple[str, Any, None]]:
    """A field for each sampling parameter, by its name in HTTP and with a type that JSON has."""
    return [(each.http_name, _json_type(each.type) | None, None) for each in BODY_SAMPLING_PARAMETERS.values()]


def _json_type(kind: Any) -> Any:
    match get_args(kind):
        case (inner, last) if get_origin(kind) is tuple and last is ...:
            pair = get_args(inner)
            return dict[pair[0], pair[1]] if pair else list[inner]  # type: ignore[valid-type]  # made at run time
        case _:
            return kind


if TYPE_CHECKING:

    class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
        """The sampling parameters that have the same form in HTTP as on the wire, made from `Sampling`."""

else:
    SamplingFields = msgspec.defstruct("SamplingFields", _sampling_fields(), frozen=True, kw_only=True)


class GenerationBody(SamplingFields, frozen=True, kw_only=True):
    """The fields that chat and completion bodies share. None means absent."""

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    service_tier: str | None = None
    ttl_first_ms: int | None = None
    ttl_ms: int | None = None
    background: bool | None = None
    guided_json: msgspec.Raw = _ABSENT
    guided_regex: msgspec.Raw = _ABSENT
    guided_choice: msgspec.Raw = _ABSENT
    guided_grammar: msgspec.Raw = _ABSENT
    structured_outputs: msgspec.Raw = _ABSENT
    response_format: msgspec.Raw = _ABSENT


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message's content; only type `text` is supported."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    tool_calls: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: msgspec.Raw = _ABSENT
    functions: msgspec.Raw = _ABSENT
    modalities: msgspec.Raw = _ABSENT
    audio: msgspec.Raw = _ABSENT
    web_search_options: msgspec.Raw = _ABSENT


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """The body of /v1/completions. `prompt`: text, token ids, or a list of either."""

    prompt: msgspec.Raw
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: int | bool | None = None


class _ResponseFormatField(msgspec.Struct, frozen=True):
    type: str


_B = TypeVar("_B", ChatBody, CompletionBody)
_CHAT_DECODER: Final = msgspec.json.Decoder(ChatBody)
_COMPLETION_DECODER: Final = msgspec.json.Decoder(CompletionBody)
_UNSUPPORTED: Final = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "tools",
    "functions",
    "audio",
    "web_search_options",
)


async def read_body(request: Request, bytes_max: int, timeout_s: float) -> bytes:
    """Read a body of bounded size. Raises HttpError 413 as soon as it is known to be larger, 408 when it does not come."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_body(request, bytes_max)
    except TimeoutError as error:
        raise HttpError(408, f"the request body did not come within {timeout_s:g} s", code="body_timeout") from error


async def _read_body(request: Request, bytes_max: int) -> bytes:
    error = HttpError(413, f"the request body is larger than {bytes_max} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise error
    body = bytearray()  # not a list of pieces, which may be of one byte each
    async for piece in request.stream():
        if len(body) + len(piece) > bytes_max:
            raise error
        body += piece
    return bytes(body)


def chat_body(data: bytes) -> ChatBody:
    """Decode and check a chat body. Raises HttpError 400."""
    body = _decode(_CHAT_DECODER, data)
    _check_supported(body)
    if _stripped(body.modalities) not in (*_EMPTY_VALUES, b'["text"]'):
        raise invalid("only text can be generated", "modalities", "unsupported")
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs is allowed only with logprobs", "top_logprobs")
    return body


def completion_body(data: bytes) -> CompletionBody:
    """Decode and check a completion body. Raises HttpError 400."""
    body = _decode(_COMPLETION_DECODER, data)
    _check_supported(body)
    if body.logprobs is True:
        raise invalid("logprobs must be a number here: how many of the likeliest tokens to show", "logprobs")
    if body.echo and top_logprobs_count(body) is not None:
        raise invalid("logprobs of the prompt are not supported; leave out echo or logprobs", "logprobs", "unsupported")
    if body.suffix:
        raise invalid("suffix is not supported", "suffix", "unsupported")
    if body.best_of is not None and body.best_of != (body.n if body.n is not None else 1):
        raise invalid("best_of is supported only where it equals n", "best_of", "unsupported")
    return body


def sampling_parameters(body: GenerationBody) -> dict[str, Any]:
    """The sampling parameters that a body gives, by their names on the wire; those of `BODY_SAMPLING_PARAMETERS`."""
    values = {name: getattr(body, parameter.http_name) for name, parameter in BODY_SAMPLING_PARAMETERS.items()}
    return {name: value for name, value in values.items() if value is not None}


def top_logprobs_count(body: GenerationBody) -> int | None:
    """How many of the likeliest tokens to return with each token; None for no log-probabilities at all."""
    match body:
        case ChatBody():
            return (body.top_logprobs or 0) if body.logprobs else None
        case CompletionBody():
            return None if body.logprobs is False else body.logprobs
        case _:
            return None


def chat_messages(body: ChatBody) -> tuple[Message, ...]:
    """The messages of a chat as plain text. Raises HttpError 400 for content that is not text."""
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(body.messages))


def read_prompts(body: CompletionBody) -> list[str] | list[list[int]]:
    """All prompts of a completion body, either all text or all token ids. Raises HttpError 400."""
    value = _decode_prompts(body.prompt)
    if not value or value == [[]]:
        raise invalid("prompt is empty", "prompt")
    if len(value) > PROMPTS_MAX:
        raise invalid(f"at most {PROMPTS_MAX} prompts are taken in one request, not {len(value)}", "prompt")
    return value


def _decode_prompts(prompt: msgspec.Raw) -> list[str] | list[list[int]]:
    with contextlib.suppress(msgspec.ValidationError):
        return [msgspec.json.decode(prompt, type=str)]
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.json.decode(prompt, type=list[str])
    with contextlib.suppress(msgspec.ValidationError):
        return [msgspec.json.decode(prompt, type=list[int])]
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.json.decode(prompt, type=list[list[int]])
    raise invalid("prompt must be a string, a list of strings, a list of token ids or a list of such lists", "prompt")


def _decode(decoder: msgspec.json.Decoder[_B], data: bytes) -> _B:
    try:
        data.decode()  # parts that are read later are not looked at by the decoder
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        param = place.strip("`").removeprefix("$").removeprefix(".")
        if not param and "required field" in reason:
            param = reason.rpartition("`")[0].rpartition("`")[2]
        raise invalid(f"{param}: {reason}" if param else reason, param or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise invalid("the body is nested too deeply", code="invalid_json") from error


def _check_supported(body: ChatBody | CompletionBody) -> None:
    for name in _UNSUPPORTED:
        if _stripped(getattr(body, name, _ABSENT)) not in _EMPTY_VALUES:
            raise invalid(f"{name} is not supported", name, "unsupported")
    if _stripped(body.response_format) not in _EMPTY_VALUES and _response_format_type(body.response_format) != "text":
        raise invalid("response_format is supported only as text", "response_format", "unsupported")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options is allowed only with stream", "stream_options")


def _stripped(value: msgspec.Raw) -> bytes:
    return bytes(value).strip()


def _response_format_type(value: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(value, type=_ResponseFormatField).type
    except msgspec.ValidationError as error:
        raise invalid("response_format must be an object with a type", "response_format") from error


def _message(message: ChatMessage, place: str) -> Message:
    calls = {_stripped(message.tool_calls), _stripped(message.function_call)}
    if message.role in ("tool", "function") or not calls <= set(_EMPTY_VALUES):
        raise invalid(f"{place}: tools are not supported", place, "unsupported")
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        return Message(role, message.content)
    if message.content is None:
        if role != "assistant":
            raise invalid(f"{place}.content is missing", f"{place}.content")
        return Message(role, "")
    texts = []
    for index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            where = f"{place}.content[{index}]"
            raise invalid(f"{where}: only parts of type text are supported", where, "unsupported")
        texts.append(part.text)
    return Message(role, "".join(texts))
