"""What one HTTP request asks of admission: the generations to start, and how their answer is to be shaped."""

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
    Common,
    CompletionBody,
    chat_messages,
    prompts,
    sampling,
    wanted_logprobs,
)
from noria.services.gateway.api.request_headers import Caller, caller, response_id
from noria.services.gateway.api.response_bodies import ChatShape, Form, Shape, TextShape

_PREVIEW_S: Final = 10.0
_T = TypeVar("_T")


class Prompt(msgspec.Struct, frozen=True):
    """What one generation starts from; `echo` precedes its output."""

    text: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    echo: str = ""


class Work(msgspec.Struct, frozen=True):
    """One HTTP request, understood. Choices are numbered prompt by prompt, `choices` for each."""

    shape: Shape
    response_id: str
    request_id: str
    created: int
    prompts: tuple[Prompt, ...]
    body: Common
    choices: int
    max_tokens: int | None
    stop: tuple[str, ...]
    caller: Caller

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return bool(self.body.stream)

    @property
    def resumes(self) -> bool:
        """Whether the rest of a broken stream is asked for."""
        return bool(self.caller.last_event)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.body.stream_options is not None and self.body.stream_options.include_usage

    @property
    def form(self) -> Form:
        """How the answer is to look."""
        return Form(
            self.shape,
            self.response_id,
            self.request_id,
            self.created,
            self.choices,
            self.stop,
            self.include_usage,
            tuple(prompt.echo for prompt in self.prompts),
        )

    @property
    def names(self) -> list[str]:
        """What the generations are called inside, prompt by prompt."""
        base = self.caller.wire_name(self.response_id)
        return [base] if len(self.prompts) == 1 else [f"{base}-{number}" for number in range(len(self.prompts))]

    def start(self, client: AsyncClient, traceparent: str, grace_ms: int) -> list[Generation]:
        """Start all generations, or find those again whose stream broke.

        grace_ms: how long they go on without this gateway. Raises Refused, having left those already started.
        """
        started: list[Generation] = []
        try:
            for prompt, name in zip(self.prompts, self.names, strict=True):
                if self.resumes:
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
        """Ask what would become of it. Raises HttpError 400 for several prompts, ClientError when nothing answers."""
        if len(self.prompts) != 1:
            raise invalid("a preview takes one prompt", "prompt")
        (prompt,) = self.prompts
        return await client.preview(
            prompt.text,
            messages=prompt.messages,
            token_ids=prompt.token_ids,
            timeout_s=_PREVIEW_S,
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
            logprobs=wanted_logprobs(body),
            **sampling(body),  # type: ignore[typeddict-item]  # its names are those of Options, as a test compares
        )
        return options


def chat_work(body: ChatBody, headers: Headers) -> Work:
    """Understand a chat request. Raises HttpError 400."""
    if not body.messages:
        raise invalid("messages is empty", "messages")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens contradict each other", "max_completion_tokens")
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    prompt = Prompt(messages=chat_messages(body))
    return _work(ChatShape(), body, (prompt,), limit, headers)


def completion_work(body: CompletionBody, headers: Headers) -> Work:
    """Understand a plain completion request. Raises HttpError 400."""
    found: list[Prompt] = []
    for given in prompts(body):
        if isinstance(given, str):
            found.append(Prompt(text=given, echo=given if body.echo else ""))
        elif body.echo:
            raise invalid("echo is supported only for prompts of text", "echo", "unsupported")
        else:
            found.append(Prompt(token_ids=tuple(given)))
    limit = 16 if body.max_tokens is None else body.max_tokens
    return _work(TextShape(), body, tuple(found), limit, headers)


def _work(
    shape: Shape,
    body: Common,
    found: tuple[Prompt, ...],
    max_tokens: int | None,
    headers: Headers,
) -> Work:
    asked = caller(
        headers,
        body.service_tier,
        body.ttl_first_ms,
        body.ttl_ms,
        background=bool(body.background),
    )
    _check(asked, body, found)
    name = response_id(shape.prefix, asked)
    return Work(
        shape=shape,
        response_id=name,
        request_id=asked.name or name,
        created=int(time.time()),
        prompts=found,
        body=body,
        choices=_or(body.n, 1),
        max_tokens=max_tokens,
        stop=_stop(body.stop),
        caller=asked,
    )


def _check(asked: Caller, body: Common, found: tuple[Prompt, ...]) -> None:
    """Refuse what a background request, or the rest of a stream, cannot be."""
    if asked.background and (len(found) != 1 or found[0].echo):
        raise invalid("a background request takes one prompt and does not echo it", "prompt", "unsupported")
    if asked.last_event and not (body.stream and asked.name):
        reason = "Last-Event-ID asks for the rest of a stream: it needs stream and the stream's X-Request-Id or Idempotency-Key"
        raise invalid(reason, "Last-Event-ID")


def _stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is None or stop == "":
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value
