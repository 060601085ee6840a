"""The endpoints /v1/chat/completions and /v1/completions, as ASGI applications that see their connection close."""

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
    RequestOutcome,
    collect_answer,
    wait_until_accepted,
    while_connected,
)
from noria.services.gateway.api.background import BackgroundEndpoint
from noria.services.gateway.api.errors import HttpError, from_client
from noria.services.gateway.api.generation_request import GenerationRequest, chat_request, completion_request
from noria.services.gateway.api.request_bodies import chat_body, completion_body, read_body
from noria.services.gateway.config import GatewayConfig
from noria.shared.telemetry.telemetry import Span, Telemetry

GENERATION_PATHS: Final = ("/v1/chat/completions", "/v1/completions")
RequestParser = Callable[[bytes, Headers], GenerationRequest]


class OpenRequests(msgspec.Struct):
    """Counts of generation requests, and whether the gateway is stopping.

    open: under way. served: ended so far. draining: the gateway reports itself not ready. leaving: consoles are closed.
    """

    open: int = 0
    served: int = 0
    draining: bool = False
    leaving: bool = False


class GenerationEndpoint:
    """One generation endpoint, for chat or for plain completions."""

    def __init__(
        self,
        operation: str,
        parse: RequestParser,
        client: AsyncClient,
        config: GatewayConfig,
        telemetry: Telemetry,
        traffic: OpenRequests,
        background: BackgroundEndpoint,
    ) -> None:
        self._background = background
        self._operation = operation
        self._parse = parse
        self._client = client
        self._config = config
        self._telemetry = telemetry
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request and record its span."""
        request = Request(scope, receive)
        parent = request.headers.get("traceparent", "")
        span = generation_spans.begin(self._telemetry, self._operation, request.method, request.url.path, parent)
        outcome = RequestOutcome()
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
            # The server stops and its drain time is over; leaving has cancelled the generations.
            outcome.error, outcome.error_type = "the server was stopped", "stopped"
        finally:
            self._traffic.open -= 1
            self._traffic.served += 1
            generation_spans.end(span, outcome)

    async def _answer(
        self, request: Request, receive: Receive, send: Send, span: Span, outcome: RequestOutcome
    ) -> None:
        data = await read_body(request, self._config.body_bytes_max, self._config.body_timeout_s)
        generation_request = self._parse(data, request.headers)
        generation_spans.record_request(span, generation_request)
        try:
            generations = generation_request.start_generations(self._client, span.traceparent, self._config.grace_ms)
        except ClientError as error:
            raise from_client(error) from error
        if generation_request.caller.background and not generation_request.stream:
            outcome.status = await self._accept_in_background(generation_request, generations, request, receive, send)
            return
        if not generation_request.stream:
            body = await while_connected(
                receive, collect_answer(generation_request.response_spec, generations, outcome)
            )
            outcome.status = 200
            response = Response(body, 200, {"x-request-id": generation_request.request_id}, "application/json")
            await response(request.scope, receive, send)
            return
        accepted = await while_connected(receive, wait_until_accepted(generations))
        outcome.model = accepted[0].model
        outcome.input_tokens = sum(each.prompt_tokens for each in accepted)
        outcome.status = 200
        positions = event_stream.parse_positions(
            generation_request.caller.last_event, len(generations) * generation_request.choices
        )
        stream = EventStream(generation_request.response_spec, generations, outcome.model, positions, outcome)
        await while_connected(receive, stream.run(send))

    async def _accept_in_background(
        self,
        generation_request: GenerationRequest,
        generations: list[Generation],
        request: Request,
        receive: Receive,
        send: Send,
    ) -> int:
        try:
            await while_connected(receive, wait_until_accepted(generations))
        except Disconnected:
            if not generation_request.caller.name:  # the client does not know the id
                self._client.cancel(generation_request.wire_names[0], generation_request.caller.credential)
            raise
        for generation in generations:
            generation.leave()
        response = await self._background.accepted_response(generation_request)
        await response(request.scope, receive, send)
        return response.status_code


def parse_chat_request(data: bytes, headers: Headers) -> GenerationRequest:
    """Parse the body of a chat request. Raises HttpError."""
    return chat_request(chat_body(data), headers)


def parse_completion_request(data: bytes, headers: Headers) -> GenerationRequest:
    """Parse the body of a plain completion request. Raises HttpError."""
    return completion_request(completion_body(data), headers)
