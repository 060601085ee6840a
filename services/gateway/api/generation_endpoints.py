"""The generation endpoints. Each is an ASGI application of its own, which sees its connection close."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from noria.client import AsyncClient, ClientError, Generation
from noria.services.gateway.api import event_stream, generation_spans
from noria.services.gateway.api.answering import (
    Disconnected,
    EventStream,
    Outcome,
    accepted_by_all,
    while_connected,
    whole,
)
from noria.services.gateway.api.background import Background
from noria.services.gateway.api.errors import HttpError, from_client
from noria.services.gateway.api.generation_request import Work, chat_work, completion_work
from noria.services.gateway.api.request_bodies import chat_body, completion_body, read_body
from noria.services.gateway.config import GatewayConfig
from noria.shared.telemetry.telemetry import Span, Telemetry

GENERATION_PATHS: Final = ("/v1/chat/completions", "/v1/completions")
Understand = Callable[[bytes, Headers], Work]


class Traffic(msgspec.Struct):
    """Counts of generation requests, for the snapshot, and whether no more are wanted. leaving: consoles are to be let go."""

    open: int = 0
    served: int = 0
    draining: bool = False
    leaving: bool = False


class Generations:
    """One generation endpoint."""

    def __init__(
        self,
        operation: str,
        understand: Understand,
        client: AsyncClient,
        config: GatewayConfig,
        telemetry: Telemetry,
        traffic: Traffic,
        background: Background,
    ) -> None:
        self._background = background
        self._operation = operation
        self._understand = understand
        self._client = client
        self._config = config
        self._telemetry = telemetry
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, within its span."""
        request = Request(scope, receive)
        parent = request.headers.get("traceparent", "")
        span = generation_spans.begin(self._telemetry, self._operation, request.method, request.url.path, parent)
        outcome = Outcome()
        self._traffic.open += 1
        try:
            await self._answer(request, receive, send, span, outcome)
        except HttpError as error:
            outcome.error, outcome.status = str(error), error.status
            outcome.error_type = error.body.code or str(error.status)
            raise
        except (Disconnected, ClientDisconnect, OSError):
            outcome.error, outcome.error_type = "the connection was closed", "disconnected"
        except asyncio.CancelledError:
            # The server stops and has waited long enough: leaving has cancelled the generations.
            outcome.error, outcome.error_type = "the server was stopped", "stopped"
        finally:
            self._traffic.open -= 1
            self._traffic.served += 1
            generation_spans.end(span, outcome)

    async def _answer(self, request: Request, receive: Receive, send: Send, span: Span, outcome: Outcome) -> None:
        data = await read_body(request, self._config.body_bytes_max, self._config.body_timeout_s)
        work = self._understand(data, request.headers)
        generation_spans.understood(span, work)
        try:
            generations = work.start(self._client, span.traceparent, self._config.grace_ms)
        except ClientError as error:
            raise from_client(error) from error
        if work.caller.background and not work.stream:
            outcome.status = await self._leave_behind(work, generations, request, receive, send)
            return
        if not work.stream:
            body = await while_connected(receive, whole(work.form, generations, outcome))
            outcome.status = 200
            response = Response(body, 200, {"x-request-id": work.request_id}, "application/json")
            await response(request.scope, receive, send)
            return
        accepted = await while_connected(receive, accepted_by_all(generations))
        outcome.model = accepted[0].model
        outcome.input_tokens = sum(each.prompt_tokens for each in accepted)
        outcome.status = 200
        have = event_stream.read(work.caller.last_event, len(generations) * work.choices)
        stream = EventStream(work.form, generations, outcome.model, have, outcome)
        await while_connected(receive, stream.run(send))

    async def _leave_behind(
        self, work: Work, generations: list[Generation], request: Request, receive: Receive, send: Send
    ) -> int:
        try:
            await while_connected(receive, accepted_by_all(generations))
        except Disconnected:
            if not work.caller.name:  # nobody knows what to ask for
                self._client.cancel(work.names[0], work.caller.credential)
            raise
        for generation in generations:
            generation.leave()
        response = await self._background.accepted(work)
        await response(request.scope, receive, send)
        return response.status_code


def understand_chat(data: bytes, headers: Headers) -> Work:
    """The work that a chat's body asks for. Raises HttpError."""
    return chat_work(chat_body(data), headers)


def understand_completion(data: bytes, headers: Headers) -> Work:
    """The work that a completion's body asks for. Raises HttpError."""
    return completion_work(completion_body(data), headers)
