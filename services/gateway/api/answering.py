"""Answers one generation request, as one JSON body or as server-sent events, while the client is connected."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec
from starlette.types import Message as HttpMessage
from starlette.types import Receive, Send

from noria.client import Accepted, ClientError, Completion, Delta, Generation
from noria.services.gateway.api.errors import HttpError, from_client, from_finish
from noria.services.gateway.api.event_stream import EventPosition, encode_event, format_positions
from noria.services.gateway.api.response_bodies import (
    AnswerBody,
    ChoiceBody,
    ResponseSpec,
    encode,
    stop_reason,
    usage_body,
)

_T = TypeVar("_T")
_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class AnswerSource(Protocol):
    """Where an answer is read from: a generation of the client library, or a reader of a shared feed."""

    async def next(self) -> Delta | None:
        """Wait for the next delta; None after the last. Raises ClientError."""

    async def result(self) -> Completion:
        """Wait for the end and return the complete answer. Raises ClientError."""

    def leave(self) -> None:
        """Stop reading."""


class RequestOutcome(msgspec.Struct):
    """How a request ended, for its span. status: the HTTP status, 0 when nothing was answered."""

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: tuple[str, ...] = ()
    error: str = ""
    error_type: str = ""
    status: int = 0


class Disconnected(Exception):  # noqa: N818  # not an error: nobody reads any more
    """Raised when the connection was closed before the answer was complete."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work`, cancelling it as soon as the connection closes. Raises Disconnected then."""
    work_task = asyncio.ensure_future(work)
    disconnect_task = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((work_task, disconnect_task), return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done():
            raise Disconnected
        return work_task.result()
    finally:
        for task in (work_task, disconnect_task):
            task.cancel()
        await asyncio.gather(work_task, disconnect_task, return_exceptions=True)


async def wait_until_accepted(generations: list[Generation]) -> list[Accepted]:
    """Wait until admission accepts every generation. Raises HttpError at the first refusal, having left the others."""
    try:
        return [await generation.accepted() for generation in generations]
    except BaseException as error:
        _leave(generations)
        if isinstance(error, ClientError):
            raise from_client(error) from error
        raise


async def collect_answer(spec: ResponseSpec, generations: Sequence[AnswerSource], outcome: RequestOutcome) -> bytes:
    """Wait for all generations and return the answer as JSON. Raises HttpError for refusals and for ends that are errors."""
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
    return encode(answer_body(spec, completions, outcome))


def answer_body(spec: ResponseSpec, completions: Sequence[Completion], outcome: RequestOutcome) -> AnswerBody:
    """Build the body of a complete answer, however its choices ended; records model and tokens in `outcome`."""
    bodies: list[ChoiceBody] = []
    for number, completion in enumerate(completions):
        for choice in completion.choices:
            reason = stop_reason(choice.matched, spec.stop)
            index = number * spec.choices + choice.index
            bodies.append(spec.response_format.full_choice(index, spec.echoes[number], choice, reason))
    _record_usage(outcome, completions)
    cached = sum(completion.usage.cached_tokens for completion in completions)
    return AnswerBody(
        id=spec.response_id,
        object=spec.response_format.full_object,
        created=spec.created,
        model=outcome.model,
        choices=tuple(bodies),
        usage=usage_body(outcome.input_tokens, outcome.output_tokens, cached),
    )


class EventStream:
    """Sends one answer as server-sent events, from the positions that its reader has; all generations share a connection."""

    def __init__(
        self,
        spec: ResponseSpec,
        generations: Sequence[AnswerSource],
        model: str,
        positions: list[EventPosition],
        outcome: RequestOutcome,
    ) -> None:
        self._spec = spec
        self._generations = generations
        self._outcome = outcome
        self._model = model
        self._positions = positions
        self._send_lock = asyncio.Lock()

    async def run(self, send: Send) -> None:
        """Send headers, all events and `[DONE]`; an error is sent as an event before `[DONE]`."""
        headers = [*_STREAM_HEADERS, (b"x-request-id", self._spec.request_id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with asyncio.TaskGroup() as tasks:
                for number, generation in enumerate(self._generations):
                    tasks.create_task(self._follow(send, number, generation))
        except* HttpError as errors:
            first_error = errors.exceptions[0]
            assert isinstance(first_error, HttpError)
            self._outcome.error, self._outcome.error_type = (
                first_error.body.message,
                first_error.body.code or first_error.body.type,
            )
            await send(_event_message(first_error.encode(), last=False))
            await send(_event_message(b"[DONE]", last=True))
        else:
            await self._finish(send)
        finally:
            _leave(self._generations)

    async def _follow(self, send: Send, number: int, generation: AnswerSource) -> None:
        spec = self._spec
        first_index = number * spec.choices
        for index in range(first_index, first_index + spec.choices):
            if not self._positions[index].begun:
                self._positions[index] = EventPosition(begun=True)
                opening = spec.response_format.first_chunk(index, spec.echoes[number])
                if opening is not None:
                    await self._send(send, opening)
        try:
            while (delta := await generation.next()) is not None:
                await self._delta(send, first_index + delta.index, delta)
        except ClientError as error:
            raise from_client(error) from error

    async def _delta(self, send: Send, index: int, delta: Delta) -> None:
        # A newer attempt repeats text that was sent already, and it is the same text: send only what is new.
        sent = self._positions[index]
        text = delta.text[max(0, sent.characters - delta.characters) :]
        logprobs = delta.logprobs[max(0, sent.tokens - delta.start) :]
        tokens = max(sent.tokens, delta.start + len(delta.token_ids))
        characters = max(sent.characters, delta.characters + len(delta.text))
        self._positions[index] = EventPosition(delta.attempt, tokens, characters, begun=True, ended=sent.ended)
        if text or logprobs:
            await self._send(send, self._spec.response_format.chunk(index, text, logprobs))
        if delta.finish is None or sent.ended:
            return
        if (error := from_finish(delta.finish)) is not None:
            raise error
        self._positions[index] = msgspec.structs.replace(self._positions[index], ended=True)
        reason = stop_reason(delta.finish.matched, self._spec.stop)
        await self._send(send, self._spec.response_format.last_chunk(index, delta.finish.reason, reason))

    async def _finish(self, send: Send) -> None:
        completions = [await generation.result() for generation in self._generations]
        _record_usage(self._outcome, completions)
        if self._spec.include_usage:
            cached = sum(completion.usage.cached_tokens for completion in completions)
            usage = usage_body(self._outcome.input_tokens, self._outcome.output_tokens, cached)
            chunk = self._chunk(())
            await send(_event_message(encode(msgspec.structs.replace(chunk, usage=usage)), last=False))
        await send(_event_message(b"[DONE]", last=True))

    async def _send(self, send: Send, choice: ChoiceBody) -> None:
        message = _event_message(encode(self._chunk((choice,))), last=False, position=format_positions(self._positions))
        async with self._send_lock:  # a slow reader holds its own stream here, while its news merge in the client
            await send(message)

    def _chunk(self, choices: tuple[ChoiceBody, ...]) -> AnswerBody:
        spec = self._spec
        usage = None if spec.include_usage else msgspec.UNSET
        return AnswerBody(
            spec.response_id, spec.response_format.chunk_object, spec.created, self._model, choices, usage
        )


def _event_message(data: bytes, *, last: bool, position: str = "") -> HttpMessage:
    return {"type": "http.response.body", "body": encode_event(data, position), "more_body": not last}


def _record_usage(outcome: RequestOutcome, completions: Sequence[Completion]) -> None:
    accepted = completions[0].accepted
    outcome.model = accepted.model if accepted is not None else ""
    outcome.input_tokens = sum(completion.usage.prompt_tokens for completion in completions)
    outcome.output_tokens = sum(completion.usage.output_tokens for completion in completions)
    outcome.finish_reasons = tuple(choice.finish_reason for each in completions for choice in each.choices)


def _leave(generations: Sequence[AnswerSource]) -> None:
    for generation in generations:
        generation.leave()


async def _wait_for_disconnect(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
