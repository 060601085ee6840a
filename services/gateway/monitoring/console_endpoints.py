"""`/console`: a page that shows what the stack does, and its feed of server-sent events.

The page itself is public and holds nothing; the feed and what is told of requests are for operators only, where there are
tenants. Everything comes from this server: the page works where there is no other.
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
from noria.services.gateway.api.operator_access import Operators
from noria.services.gateway.config import GatewayConfig
from noria.services.gateway.monitoring.live_subscribers import WATCHERS_MAX, Watch
from noria.services.gateway.monitoring.metrics import HttpMetrics
from noria.shared.actor.inspect import explain, inspect, numbers_of

_ANSWER_S: Final = 1.0
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


class Console:
    """The page, its parts, its feed, and the life of a request."""

    def __init__(
        self, config: GatewayConfig, operators: Operators, metrics: HttpMetrics, leaving: Callable[[], bool]
    ) -> None:
        self._config = config
        self._operators = operators
        self._metrics = metrics
        self._watch = Watch(config.runtime, leaving)
        self._files = {each.name: each.read_bytes() for each in files(__package__).joinpath("console").iterdir()}

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/console", self.page),
            Route("/console/", self.slashed),
            Route("/console/feed", Feed(self._watch, self._operators, self._metrics)),
            Route("/console/requests/{name}", self.request),
            Route("/console/{file}", self.file),
        ]

    async def page(self, request: Request) -> Response:
        """The page."""
        del request
        return self._found("index.html")

    async def slashed(self, request: Request) -> Response:
        """Its parts are named relative to it."""
        del request
        return RedirectResponse("/console")

    async def file(self, request: Request) -> Response:
        """A part of the page."""
        return self._found(str(request.path_params["file"]))

    async def request(self, request: Request) -> Response:
        """What became of a request, by its id or number: its stages, and why it waited."""
        await self._operators.admit(request)
        name = str(request.path_params["name"])
        told = await asyncio.to_thread(self._life, name)
        if not told["streams"] and not told["why"]:
            raise HttpError(404, f"nothing is known of request {name!r}", code="not_found")
        return Response(msgspec.json.encode(told), media_type="application/json")

    def _life(self, name: str) -> dict[str, object]:
        runtime = self._config.runtime
        streams: list[object] = []
        for number in numbers_of(runtime, name, _ANSWER_S):
            answer = inspect(runtime, Service.SCHEDULER, _ANSWER_S, number, "story")
            streams += msgspec.json.decode(answer.json) or [] if answer is not None else []
        return {"request": name, "streams": streams, "why": explain(runtime, name, _ANSWER_S)}

    def _found(self, name: str) -> Response:
        content = self._files.get(name)
        kind = _TYPES.get(PurePosixPath(name).suffix)
        if content is None or kind is None:
            raise HttpError(404, f"there is nothing at /console/{name}")
        return Response(content, headers=_HEADERS, media_type=kind)


class Feed:
    """Events for one console, for as long as it reads them and the gateway stays."""

    def __init__(self, watch: Watch, operators: Operators, metrics: HttpMetrics) -> None:
        self._watch = watch
        self._operators = operators
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an operator in and tell what happens."""
        request = Request(scope, receive)
        await self._operators.admit(request)
        if len(self._watch.watchers) >= WATCHERS_MAX:
            raise HttpError(503, f"{WATCHERS_MAX} consoles are open already", kind="server_error", code="overloaded")
        try:
            await while_connected(receive, self._tell(send))
        except (Disconnected, OSError):
            return
        finally:
            self._metrics.watchers = len(self._watch.watchers)

    async def _tell(self, send: Send) -> None:
        async with self._watch.watching() as watcher:
            self._metrics.watchers = len(self._watch.watchers)
            await send({"type": "http.response.start", "status": 200, "headers": list(_FEED_HEADERS)})
            while not watcher.over:
                try:
                    event = await asyncio.wait_for(watcher.next(), _KEEP_ALIVE_S)
                except TimeoutError:
                    event = b": still here\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
