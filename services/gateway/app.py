"""The HTTP routes. Each generation endpoint is an ASGI application of its own, which sees its connection close."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from noria.client import AsyncClient, ClientError, Code, Description, Generation, Refused
from noria.proto.base import Service
from noria.services.gateway import observing, positions
from noria.services.gateway.answers import preview_body
from noria.services.gateway.background import PATH, Background
from noria.services.gateway.bodies import chat_body, completion_body, read_body
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.errors import HttpError, from_client
from noria.services.gateway.metrics import HttpMetrics, Measured, RouteNames
from noria.services.gateway.operators import Operators
from noria.services.gateway.scraping import Scraping
from noria.services.gateway.serving import Disconnected, EventStream, Outcome, accepted_by_all, while_connected, whole
from noria.services.gateway.viewing import Console
from noria.services.gateway.work import Work, chat_work, completion_work
from noria.shared.inspect import explain, inspect_all_async
from noria.shared.log import logger
from noria.shared.telemetry import Span, Telemetry

_DESCRIBE_S: Final = 2.0
_INSPECT_S: Final = 1.0
Understand = Callable[[bytes, Headers, int], Work]


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
        span = observing.begin(self._telemetry, self._operation, request.method, request.url.path, parent)
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
            observing.end(span, outcome)

    async def _answer(self, request: Request, receive: Receive, send: Send, span: Span, outcome: Outcome) -> None:
        data = await read_body(request, self._config.body_bytes_max, self._config.body_timeout_s)
        work = self._understand(data, request.headers, self._config.request_id_characters_max)
        observing.understood(span, work)
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
        have = positions.read(work.caller.last_event, len(generations) * work.choices)
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


class Pages:
    """The small endpoints."""

    def __init__(self, client: AsyncClient, config: GatewayConfig, operators: Operators, traffic: Traffic) -> None:
        self._client = client
        self._config = config
        self._operators = operators
        self._traffic = traffic

    async def index(self, request: Request) -> Response:
        """What there is."""
        del request
        paths = [route.path for route in self.routes() if route.path != "/"]
        return _json(
            {"noria": "a continuous-batching LLM inference server", "urls": [*_GENERATION_PATHS, PATH, *paths]}
        )

    async def health(self, request: Request) -> Response:
        """200 while gateway and admission answer."""
        del request
        if await self._describe() is None:
            return _json({"status": "unavailable", "missing": [Service.ADMISSION.value]}, 503)
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when everything is there, else what is waited for."""
        del request
        description = await self._describe()
        waiting_for = (Service.ADMISSION.value,) if description is None else description.waiting_for
        if self._traffic.draining:
            waiting_for = (Service.GATEWAY.value,)
        return _json({"ready": not waiting_for, "waiting_for": waiting_for}, 503 if waiting_for else 200)

    async def models(self, request: Request) -> Response:
        """The names served."""
        del request
        description = await self._served()
        return _json({"object": "list", "data": [_model(name, description) for name in description.models]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        name = str(request.path_params["name"])
        description = await self._served()
        if name not in description.models:
            served = ", ".join(description.models)
            raise HttpError(404, f"there is no model {name!r}; served: {served}", param="model", code="model_not_found")
        return _json(_model(name, description))

    async def state(self, request: Request) -> Response:
        """What every process holds; null for those that do not answer. For operators only, where there are tenants."""
        await self._operators.admit(request)
        found = await inspect_all_async(self._config.runtime, timeout_s=_INSPECT_S)
        state: dict[str, object] = {}
        for service in Service:
            snapshot = found.get(service)
            state[service.value] = snapshot and {
                "pid": snapshot.pid,
                "state": snapshot.state,
                **msgspec.json.decode(snapshot.json),
            }
        return _json(state)

    async def why(self, request: Request) -> Response:
        """What a request waited for, in plain words, by its id or number. For operators only, where there are tenants."""
        await self._operators.admit(request)
        name = str(request.path_params["name"])
        lines = await asyncio.to_thread(explain, self._config.runtime, name, _INSPECT_S)
        if not lines:
            raise HttpError(404, f"nothing is known of request {name!r}", code="not_found")
        return _json({"request": name, "why": lines})

    async def preview(self, request: Request) -> Response:
        """What would become of a chat or completion request now."""
        data = await read_body(request, self._config.body_bytes_max, self._config.body_timeout_s)
        understand = _understand_chat if _is_chat(data) else _understand_completion
        work = understand(data, request.headers, self._config.request_id_characters_max)
        try:
            forecast = await work.preview(self._client)
        except ClientError as error:
            raise from_client(error) from error
        if forecast.code is Code.UNAUTHORIZED:
            raise from_client(Refused(forecast.code, forecast.reason, forecast.parameter))
        return _json(preview_body(forecast))

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/preview", self.preview, methods=["POST"]),
            Route("/", self.index),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/health/ready", self.ready),
            Route("/debug/state", self.state),
            Route("/debug/why/{name:path}", self.why),
        ]

    async def _describe(self) -> Description | None:
        try:
            return await self._client.describe(_DESCRIBE_S)
        except ClientError:
            return None

    async def _served(self) -> Description:
        try:
            return await self._client.describe(_DESCRIBE_S)
        except ClientError as error:
            raise from_client(error) from error


_GENERATION_PATHS: Final = ("/v1/chat/completions", "/v1/completions")


def build(client: AsyncClient, config: GatewayConfig, telemetry: Telemetry, traffic: Traffic) -> ASGIApp:
    """Make the application around a client that lives in the same event loop."""
    background = Background(client)
    operators = Operators(client)
    metrics = HttpMetrics(lambda: traffic.open)
    telemetry.add(metrics)
    chat = Generations("chat", _understand_chat, client, config, telemetry, traffic, background)
    text = Generations("text_completion", _understand_completion, client, config, telemetry, traffic, background)
    routes = [
        Route(_GENERATION_PATHS[0], chat, methods=["POST"]),
        Route(_GENERATION_PATHS[1], text, methods=["POST"]),
        Route(PATH, background, methods=["GET", "DELETE"]),
        Route(f"{PATH}/cancel", background, methods=["POST"]),
        *Pages(client, config, operators, traffic).routes(),
        *Scraping(client, config, operators).routes(),
        *Console(config, operators, metrics, lambda: traffic.leaving).routes(),
    ]
    handlers = {HttpError: _http_error, HTTPException: _routing_error, Exception: _fault}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Measured(app, metrics, RouteNames(each.path for each in routes).of)


def _understand_chat(data: bytes, headers: Headers, id_characters_max: int) -> Work:
    return chat_work(chat_body(data), headers, id_characters_max)


def _understand_completion(data: bytes, headers: Headers, id_characters_max: int) -> Work:
    return completion_work(completion_body(data), headers, id_characters_max)


class _Shape(msgspec.Struct):
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _is_chat(data: bytes) -> bool:
    """Whether a body is a chat's; what cannot be read is refused later, by name."""
    try:
        return msgspec.json.decode(data, type=_Shape).messages is not msgspec.UNSET
    except (msgspec.DecodeError, RecursionError):
        return False


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    response = error.response()
    name = request.headers.get("x-request-id")
    if name and name.isascii() and name.isprintable():
        response.headers["x-request-id"] = name
    return response


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: f"there is nothing at {request.url.path}", 405: f"{request.method} is not allowed here"}
    response = HttpError(error.status_code, messages.get(error.status_code, error.detail)).response()
    response.headers.update(error.headers or {})
    return response


async def _fault(request: Request, error: Exception) -> Response:
    # The error's own text may quote what was sent.
    place = traceback.extract_tb(error.__traceback__)[-1]
    logger(Service.GATEWAY.value).error(
        "request failed", path=request.url.path, error=type(error).__name__, at=f"{place.filename}:{place.lineno}"
    )
    return HttpError(500, "the gateway failed at this request; its log says why", kind="server_error").response()


def _model(name: str, description: Description) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": description.started_unix_s,
        "owned_by": "noria",
        "max_model_len": description.max_model_tokens,
    }


def _json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
