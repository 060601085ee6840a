"""The console at `/console`: a page that shows what the stack does, and its feed of server-sent events.

The page itself is public and holds no data; the feed and the history of requests need an operator's key if tenants are
configured. Everything comes from this server: the page works where there is no other.
"""

import asyncio
from collections.abc import Callable
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from noria.proto.base import Service
from noria.services.gateway.api.answering import Disconnected, while_connected
from noria.services.gateway.api.errors import HttpError
from noria.services.gateway.api.operator_access import OperatorAccess
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.monitoring.live_subscribers import SUBSCRIBERS_MAX, LiveSubscribers
from noria.services.gateway.monitoring.metrics import HttpMetrics
from noria.shared.actor.inspect import explain_request, inspect, request_numbers

_INSPECT_TIMEOUT_S: Final = 1.0
_KEEP_ALIVE_S: Final = 15.0
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_FEED_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ConsoleEndpoints:
    """Handlers of the console: its page and files, its live feed, and the history of a request."""

    def __init__(
        self, config: GatewayConfig, operator_access: OperatorAccess, metrics: HttpMetrics, leaving: Callable[[], bool]
    ) -> None:
        self._config = config
        self._operator_access = operator_access
        self._metrics = metrics
        self._subscribers = LiveSubscribers(config.runtime, leaving)
        self._files = {each.name: each.read_bytes() for each in files(__package__).joinpath("console").iterdir()}

    def routes(self) -> list[Route]:
        """The routes of the console."""
        return [
            Route("/console", self.page),
            Route("/console/", self.slashed),
            Route("/console/feed", LiveFeed(self._subscribers, self._operator_access, self._metrics)),
            Route("/console/requests/{name}", self.request),
            Route("/console/{file}", self.file),
        ]

    async def page(self, request: Request) -> Response:
        """Return the page."""
        del request
        return self._file_response("index.html")

    async def slashed(self, request: Request) -> Response:
        """Redirect to the path without a slash, which the page's relative links need."""
        del request
        return RedirectResponse("/console")

    async def file(self, request: Request) -> Response:
        """Return a file of the page."""
        return self._file_response(str(request.path_params["file"]))

    async def request(self, request: Request) -> Response:
        """Return the history of a request by its id or number: its stages, and why it waited. Raises HttpError 404."""
        await self._operator_access.require_operator(request)
        name = str(request.path_params["name"])
        found = await asyncio.to_thread(self._request_history, name)
        if not found["streams"] and not found["why"]:
            raise HttpError(404, f"nothing is known of request {name!r}", code="not_found")
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _request_history(self, name: str) -> dict[str, object]:
        runtime = self._config.runtime
        streams: list[object] = []
        for number in request_numbers(runtime, name, _INSPECT_TIMEOUT_S):
            answer = inspect(runtime, Service.SCHEDULER, _INSPECT_TIMEOUT_S, number, "story")
            streams += msgspec.json.decode(answer.json) or [] if answer is not None else []
        return {"request": name, "streams": streams, "why": explain_request(runtime, name, _INSPECT_TIMEOUT_S)}

    def _file_response(self, name: str) -> Response:
        content = self._files.get(name)
        kind = _TYPES.get(PurePosixPath(name).suffix)
        if content is None or kind is None:
            raise HttpError(404, f"there is nothing at /console/{name}")
        return Response(content, headers=_HEADERS, media_type=kind)


class LiveFeed:
    """The endpoint /console/feed: sends live events until the client leaves or the gateway stops."""

    def __init__(self, subscribers: LiveSubscribers, operator_access: OperatorAccess, metrics: HttpMetrics) -> None:
        self._subscribers = subscribers
        self._operator_access = operator_access
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send live events to an operator. Raises HttpError 401, 403, or 503 when too many consoles are open."""
        request = Request(scope, receive)
        await self._operator_access.require_operator(request)
        if len(self._subscribers.open) >= SUBSCRIBERS_MAX:
            raise HttpError(503, f"{SUBSCRIBERS_MAX} consoles are open already", kind="server_error", code="overloaded")
        try:
            await while_connected(receive, self._send_events(send))
        except (Disconnected, OSError):
            return
        finally:
            self._metrics.consoles = len(self._subscribers.open)

    async def _send_events(self, send: Send) -> None:
        async with self._subscribers.subscribe() as subscriber:
            self._metrics.consoles = len(self._subscribers.open)
            await send({"type": "http.response.start", "status": 200, "headers": list(_FEED_HEADERS)})
            while not subscriber.closed:
                try:
                    event = await asyncio.wait_for(subscriber.next(), _KEEP_ALIVE_S)
                except TimeoutError:
                    event = b": still here\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
