"""One parsed HTTP generation request: the generations to start, and how to format their answer."""

import time
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
from starlette.datastructures import Headers

from noria.client import AsyncClient, Forecast, Generation, Message
from noria.client.generate_request import Options
from noria.services.gateway.api.errors import invalid
from noria.services.gateway.api.request_bodies import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    chat_messages,
    read_prompts,
    sampling_parameters,
    top_logprobs_count,
)
from noria.services.gateway.api.request_headers import CallerOptions, read_caller, response_id
from noria.services.gateway.api.response_bodies import ChatFormat, CompletionFormat, ResponseFormat, ResponseSpec

_PREVIEW_TIMEOUT_S: Final = 10.0
_T = TypeVar("_T")


class Prompt(msgspec.Struct, frozen=True):
    """The prompt of one generation, as text, messages or token ids. echo: text to return before the output."""

    text: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    echo: str = ""


class GenerationRequest(msgspec.Struct, frozen=True):
    """A parsed and checked generation request. Choices are numbered prompt by prompt, `choices` for each prompt."""

    response_format: ResponseFormat
    response_id: str
    request_id: str
    created: int
    prompts: tuple[Prompt, ...]
    body: GenerationBody
    choices: int
    max_tokens: int | None
    stop: tuple[str, ...]
    caller: CallerOptions

    @property
    def stream(self) -> bool:
        """Whether the client asks for a streamed answer."""
        return bool(self.body.stream)

    @property
    def resumes_stream(self) -> bool:
        """Whether the client asks for the rest of a broken stream."""
        return bool(self.caller.last_event)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.body.stream_options is not None and self.body.stream_options.include_usage

    @property
    def response_spec(self) -> ResponseSpec:
        """How to format the answer."""
        return ResponseSpec(
            self.response_format,
            self.response_id,
            self.request_id,
            self.created,
            self.choices,
            self.stop,
            self.include_usage,
            tuple(prompt.echo for prompt in self.prompts),
        )

    @property
    def wire_names(self) -> list[str]:
        """The names of the generations on the wire, one for each prompt."""
        base = self.caller.wire_name(self.response_id)
        return [base] if len(self.prompts) == 1 else [f"{base}-{number}" for number in range(len(self.prompts))]

    def start_generations(self, client: AsyncClient, traceparent: str, grace_ms: int) -> list[Generation]:
        """Start all generations, or attach again to those whose stream broke.

        grace_ms: how long they go on after this gateway is gone. Raises Refused, having left those already started.
        """
        started: list[Generation] = []
        try:
            for prompt, name in zip(self.prompts, self.wire_names, strict=True):
                if self.resumes_stream:
                    started.append(client.attach(name, self.choices, self.caller.credential))
                else:
                    started.append(self._generate(client, prompt, name, traceparent, grace_ms))
        except BaseException:
            for generation in started:
                generation.leave()
            raise
        return started

    def _generate(self, client: AsyncClient, prompt: Prompt, name: str, traceparent: str, grace_ms: int) -> Generation:
        options = self._options(name, traceparent)
        options["grace_ms"] = grace_ms
        return client.generate(prompt.text, messages=prompt.messages, token_ids=prompt.token_ids, **options)

    async def preview(self, client: AsyncClient) -> Forecast:
        """Ask admission for a forecast of this request. Raises HttpError 400 for several prompts, ClientError on no answer."""
        if len(self.prompts) != 1:
            raise invalid("a preview takes one prompt", "prompt")
        (prompt,) = self.prompts
        return await client.preview(
            prompt.text,
            messages=prompt.messages,
            token_ids=prompt.token_ids,
            timeout_s=_PREVIEW_TIMEOUT_S,
            **self._options("", ""),
        )

    def _options(self, name: str, traceparent: str) -> Options:
        body, caller = self.body, self.caller
        options: Options = Options(
            request_id=name,
            traceparent=traceparent,
            model=body.model or "",
            n=self.choices,
            credential=caller.credential,
            traffic_class=caller.traffic_class,
            ttl_first_ms=caller.ttl_first_ms,
            ttl_ms=caller.ttl_ms,
            keep=caller.keep,
            background=caller.background,
            max_tokens=self.max_tokens,
            stop=self.stop,
            logprobs=top_logprobs_count(body),
            **sampling_parameters(body),  # type: ignore[typeddict-item]  # its names are those of Options, as a test compares
        )
        return options


def chat_request(body: ChatBody, headers: Headers) -> GenerationRequest:
    """Build a generation request from a chat body and its headers. Raises HttpError 400."""
    if not body.messages:
        raise invalid("messages is empty", "messages")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens contradict each other", "max_completion_tokens")
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    prompt = Prompt(messages=chat_messages(body))
    return _generation_request(ChatFormat(), body, (prompt,), max_tokens, headers)


def completion_request(body: CompletionBody, headers: Headers) -> GenerationRequest:
    """Build a generation request from a completion body and its headers. Raises HttpError 400."""
    found: list[Prompt] = []
    for prompt in read_prompts(body):
        if isinstance(prompt, str):
            found.append(Prompt(text=prompt, echo=prompt if body.echo else ""))
        elif body.echo:
            raise invalid("echo is supported only for prompts of text", "echo", "unsupported")
        else:
            found.append(Prompt(token_ids=tuple(prompt)))
    max_tokens = 16 if body.max_tokens is None else body.max_tokens
    return _generation_request(CompletionFormat(), body, tuple(found), max_tokens, headers)


def _generation_request(
    response_format: ResponseFormat,
    body: GenerationBody,
    prompts: tuple[Prompt, ...],
    max_tokens: int | None,
    headers: Headers,
) -> GenerationRequest:
    caller = read_caller(
        headers,
        body.service_tier,
        body.ttl_first_ms,
        body.ttl_ms,
        background=bool(body.background),
    )
    _check_combinations(caller, body, prompts)
    name = response_id(response_format.prefix, caller)
    return GenerationRequest(
        response_format=response_format,
        response_id=name,
        request_id=caller.name or name,
        created=int(time.time()),
        prompts=prompts,
        body=body,
        choices=_value_or(body.n, 1),
        max_tokens=max_tokens,
        stop=_stop_strings(body.stop),
        caller=caller,
    )


def _check_combinations(caller: CallerOptions, body: GenerationBody, prompts: tuple[Prompt, ...]) -> None:
    """Refuse combinations that a background request or a resumed stream does not allow. Raises HttpError 400."""
    if caller.background and (len(prompts) != 1 or prompts[0].echo):
        raise invalid("a background request takes one prompt and does not echo it", "prompt", "unsupported")
    if caller.last_event and not (body.stream and caller.name):
        reason = "Last-Event-ID asks for the rest of a stream: it needs stream and the stream's X-Request-Id or Idempotency-Key"
        raise invalid(reason, "Last-Event-ID")


def _stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None or stop == "":
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _value_or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
