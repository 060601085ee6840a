"""The HTTP application: all routes, and how errors are answered."""

import traceback

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from noria.client import AsyncClient
from noria.proto.base import Service
from noria.services.gateway.api.background import PATH, Background
from noria.services.gateway.api.errors import HttpError
from noria.services.gateway.api.generation_endpoints import (
    GENERATION_PATHS,
    Generations,
    Traffic,
    understand_chat,
    understand_completion,
)
from noria.services.gateway.api.info_endpoints import Pages
from noria.services.gateway.api.operator_access import Operators
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.monitoring.console_endpoints import Console
from noria.services.gateway.monitoring.metrics import HttpMetrics, Measured, RouteNames
from noria.services.gateway.monitoring.metrics_endpoints import Scraping
from noria.shared.telemetry.log import logger
from noria.shared.telemetry.telemetry import Telemetry


def build(client: AsyncClient, config: GatewayConfig, telemetry: Telemetry, traffic: Traffic) -> ASGIApp:
    """Make the application around a client that lives in the same event loop."""
    background = Background(client)
    operators = Operators(client)
    metrics = HttpMetrics(lambda: traffic.open)
    telemetry.add(metrics)
    chat = Generations("chat", understand_chat, client, config, telemetry, traffic, background)
    text = Generations("text_completion", understand_completion, client, config, telemetry, traffic, background)
    routes = [
        Route(GENERATION_PATHS[0], chat, methods=["POST"]),
        Route(GENERATION_PATHS[1], text, methods=["POST"]),
        Route(PATH, background, methods=["GET", "DELETE"]),
        Route(f"{PATH}/cancel", background, methods=["POST"]),
        *Pages(client, config, operators, traffic).routes(),
        *Scraping(client, config, operators).routes(),
        *Console(config, operators, metrics, lambda: traffic.leaving).routes(),
    ]
    handlers = {HttpError: _http_error, HTTPException: _routing_error, Exception: _fault}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Measured(app, metrics, RouteNames(each.path for each in routes).of)


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
