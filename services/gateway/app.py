"""Builds the HTTP application: all routes and the error handlers."""

import traceback

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from noria.client import AsyncClient
from noria.proto.base import Service
from noria.services.gateway.api.background import REQUEST_PATH, BackgroundEndpoint
from noria.services.gateway.api.errors import HttpError
from noria.services.gateway.api.generation_endpoints import (
    GENERATION_PATHS,
    GenerationEndpoint,
    OpenRequests,
    parse_chat_request,
    parse_completion_request,
)
from noria.services.gateway.api.info_endpoints import InfoEndpoints
from noria.services.gateway.api.operator_access import OperatorAccess
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.monitoring.console_endpoints import ConsoleEndpoints
from noria.services.gateway.monitoring.metrics import HttpMetrics, RequestTimingMiddleware, RouteNames
from noria.services.gateway.monitoring.metrics_endpoints import MetricsEndpoints
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.telemetry import Telemetry


def build(client: AsyncClient, config: GatewayConfig, telemetry: Telemetry, traffic: OpenRequests) -> ASGIApp:
    """Build the application around a client of admission that runs in the same event loop."""
    background = BackgroundEndpoint(client)
    operator_access = OperatorAccess(client)
    metrics = HttpMetrics(lambda: traffic.open)
    telemetry.add(metrics)
    chat = GenerationEndpoint("chat", parse_chat_request, client, config, telemetry, traffic, background)
    text = GenerationEndpoint(
        "text_completion", parse_completion_request, client, config, telemetry, traffic, background
    )
    routes = [
        Route(GENERATION_PATHS[0], chat, methods=["POST"]),
        Route(GENERATION_PATHS[1], text, methods=["POST"]),
        Route(REQUEST_PATH, background, methods=["GET", "DELETE"]),
        Route(f"{REQUEST_PATH}/cancel", background, methods=["POST"]),
        *InfoEndpoints(client, config, operator_access, traffic).routes(),
        *MetricsEndpoints(client, config, operator_access).routes(),
        *ConsoleEndpoints(config, operator_access, metrics, lambda: traffic.leaving).routes(),
    ]
    handlers = {HttpError: _http_error, HTTPException: _routing_error, Exception: _internal_error}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return RequestTimingMiddleware(app, metrics, RouteNames(each.path for each in routes).of)


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


async def _internal_error(request: Request, error: Exception) -> Response:
    # The error's own text may quote what was sent.
    place = traceback.extract_tb(error.__traceback__)[-1]
    logger(Service.GATEWAY.value).error(
        "request failed", path=request.url.path, error=type(error).__name__, at=f"{place.filename}:{place.lineno}"
    )
    return HttpError(500, "the gateway failed at this request; its log says why", kind="server_error").response()
