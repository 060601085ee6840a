"""Answering one generation request, whole or streamed, for as long as somebody is there to read it."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from starlette.types import Message as HttpMessage
from starlette.types import Receive, Send

from noria.client import Accepted, ClientError, Completion, Delta, Generation
from noria.services.gateway.api.errors import HttpError, from_client, from_finish
from noria.services.gateway.api.event_stream import Position, event, written
from noria.services.gateway.api.response_bodies import AnswerBody, ChoiceBody, Form, encode, stop_reason, usage_body

_T = TypeVar("_T")
_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Source(Protocol):
    """What an answer is read from: a generation, or what others read of it too."""

    async def next(self) -> Delta | None:
        """Wait for the next delta; None after the last. Raises ClientError."""

    async def result(self) -> Completion:
        """Wait for the end. Raises ClientError."""

    def leave(self) -> None:
        """Read no more."""


class Outcome(msgspec.Struct):
    """What became of a request, for its span. status: of HTTP, 0 when nothing was answered."""

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: tuple[str, ...] = ()
    error: str = ""
    error_type: str = ""
    status: int = 0


class Disconnected(Exception):  # noqa: N818  # not an error: nobody reads any more
    """The connection was closed before the answer was complete."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work`, cancelling it as soon as the connection closes. Raises Disconnected then."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise Disconnected
        return worker.result()
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def accepted_by_all(generations: list[Generation]) -> list[Accepted]:
    """Wait until every generation is accepted; the first refusal raises and the others are left."""
    try:
        return [await generation.accepted() for generation in generations]
    except BaseException as error:
        _leave(generations)
        if isinstance(error, ClientError):
            raise from_client(error) from error
        raise


async def whole(form: Form, generations: Sequence[Source], outcome: Outcome) -> bytes:
    """The JSON of the whole answer. Raises HttpError for refusals and for ends that are errors."""
    try:
        completions = [await generation.result() for generation in generations]
    except ClientError as error:
        raise from_client(error) from error
    finally:
        _leave(generations)
    for completion in completions:
        for choice in completion.choices:
            if (failure := from_finish(choice.finish)) is not None:
                raise failure
    return encode(answer(form, completions, outcome))


def answer(form: Form, completions: Sequence[Completion], outcome: Outcome) -> AnswerBody:
    """The whole answer, whatever the ends of its choices; `outcome` takes note of it."""
    bodies: list[ChoiceBody] = []
    for number, completion in enumerate(completions):
        for choice in completion.choices:
            reason = stop_reason(choice.matched, form.stop)
            index = number * form.choices + choice.index
            bodies.append(form.shape.whole(index, form.echoes[number], choice, reason))
    _note(outcome, completions)
    cached = sum(completion.usage.cached_tokens for completion in completions)
    return AnswerBody(
        id=form.response_id,
        object=form.shape.whole_object,
        created=form.created,
        model=outcome.model,
        choices=tuple(bodies),
        usage=usage_body(outcome.input_tokens, outcome.output_tokens, cached),
    )


class EventStream:
    """One answer as server-sent events, from the positions that its reader has; its generations share one connection."""

    def __init__(
        self, form: Form, generations: Sequence[Source], model: str, have: list[Position], outcome: Outcome
    ) -> None:
        self._form = form
        self._generations = generations
        self._outcome = outcome
        self._model = model
        self._positions = have
        self._turn = asyncio.Lock()

    async def run(self, send: Send) -> None:
        """Send everything from the response's start to `[DONE]`; an error ends it with an error event."""
        headers = [*_STREAM_HEADERS, (b"x-request-id", self._form.request_id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, generation in enumerate(self._generations):
                    tasks.create_task(self._follow(send, number, generation))
        except* HttpError as errors:
            first = errors.exceptions[0]
            assert isinstance(first, HttpError)
            self._outcome.error, self._outcome.error_type = first.body.message, first.body.code or first.body.type
            await send(_event(first.encode(), last=False))
            await send(_event(b"[DONE]", last=True))
        else:
            await self._finish(send)
        finally:
            _leave(self._generations)

    async def _follow(self, send: Send, number: int, generation: Source) -> None:
        form = self._form
        first = number * form.choices
        for index in range(first, first + form.choices):
            if not self._positions[index].begun:
                self._positions[index] = Position(begun=True)
                opening = form.shape.opening(index, form.echoes[number])
                if opening is not None:
                    await self._send(send, opening)
        try:
            while (delta := await generation.next()) is not None:
                await self._delta(send, first + delta.index, delta)
        except ClientError as error:
            raise from_client(error) from error

    async def _delta(self, send: Send, index: int, delta: Delta) -> None:
        # What a raised attempt takes back has been sent already and is the same text again: send only what is new.
        sent = self._positions[index]
        text = delta.text[max(0, sent.characters - delta.characters) :]
        told = delta.logprobs[max(0, sent.tokens - delta.start) :]
        tokens = max(sent.tokens, delta.start + len(delta.token_ids))
        characters = max(sent.characters, delta.characters + len(delta.text))
        self._positions[index] = Position(delta.attempt, tokens, characters, begun=True, ended=sent.ended)
        if text or told:
            await self._send(send, self._form.shape.chunk(index, text, told))
        if delta.finish is None or sent.ended:
            return
        if (error := from_finish(delta.finish)) is not None:
            raise error
        self._positions[index] = msgspec.structs.replace(self._positions[index], ended=True)
        reason = stop_reason(delta.finish.matched, self._form.stop)
        await self._send(send, self._form.shape.end(index, delta.finish.reason, reason))

    async def _finish(self, send: Send) -> None:
        completions = [await generation.result() for generation in self._generations]
        _note(self._outcome, completions)
        if self._form.include_usage:
            cached = sum(completion.usage.cached_tokens for completion in completions)
            usage = usage_body(self._outcome.input_tokens, self._outcome.output_tokens, cached)
            chunk = self._chunk(())
            await send(_event(encode(msgspec.structs.replace(chunk, usage=usage)), last=False))
        await send(_event(b"[DONE]", last=True))

    async def _send(self, send: Send, choice: ChoiceBody) -> None:
        made = _event(encode(self._chunk((choice,))), last=False, position=written(self._positions))
        async with self._turn:  # a slow reader holds its own stream here, while its news merge in the client
            await send(made)

    def _chunk(self, choices: tuple[ChoiceBody, ...]) -> AnswerBody:
        form = self._form
        usage = None if form.include_usage else msgspec.UNSET
        return AnswerBody(form.response_id, form.shape.chunk_object, form.created, self._model, choices, usage)


def _event(data: bytes, *, last: bool, position: str = "") -> HttpMessage:
    return {"type": "http.response.body", "body": event(data, position), "more_body": not last}


def _note(outcome: Outcome, completions: Sequence[Completion]) -> None:
    first = completions[0].accepted
    outcome.model = first.model if first is not None else ""
    outcome.input_tokens = sum(completion.usage.prompt_tokens for completion in completions)
    outcome.output_tokens = sum(completion.usage.output_tokens for completion in completions)
    outcome.finish_reasons = tuple(choice.finish_reason for each in completions for choice in each.choices)


def _leave(generations: Sequence[Source]) -> None:
    for generation in generations:
        generation.leave()


async def _disconnect(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
