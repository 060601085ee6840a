"""The gateway's own metrics, and the middleware that times every HTTP request."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noria.shared.telemetry import instruments
from noria.shared.telemetry.metrics import HistogramFamily, MetricValue
from noria.shared.telemetry.telemetry import MetricSource

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_OTHER: Final = "_OTHER"


class HttpMetrics(MetricSource):
    """Durations of HTTP requests, counted in the HTTP thread and read in the actor's under a lock.

    active: returns the number of generation requests under way. consoles: open consoles.
    """

    def __init__(self, active: Callable[[], int]) -> None:
        self.consoles = 0
        self._active = active
        self._requests = HistogramFamily(instruments.HTTP_DURATION)
        self._counting = threading.Lock()

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        with self._counting:
            self._requests.observe(seconds, (method if method in _METHODS else _OTHER, route, status))

    def values(self) -> Iterator[MetricValue]:
        """The current values of all metrics."""
        with self._counting:
            requests = list(self._requests.values())
        yield from requests
        yield MetricValue(instruments.HTTP_ACTIVE, self._active())
        yield MetricValue(instruments.CONSOLES, self.consoles)


class RouteNames:
    """Maps a path to its route, to keep label values few; `other` for paths without a route."""

    def __init__(self, paths: Iterable[str]) -> None:
        paths = tuple(paths)
        self._exact_paths = {each for each in paths if "{" not in each}
        self._path_prefixes = sorted((each for each in paths if "{" in each), key=len, reverse=True)

    def of(self, path: str) -> str:
        """The route of a path, or `other`."""
        if path in self._exact_paths:
            return path
        return next((each for each in self._path_prefixes if path.startswith(each[: each.index("{")])), "other")


class RequestTimingMiddleware:
    """ASGI middleware that times requests. route: maps a path to one of few label values."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, route: Callable[[str], str]) -> None:
        self._app = app
        self._metrics = metrics
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and record its duration and status."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status = time.monotonic(), 499  # what others log for a client that left before the answer

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            self._metrics.request(scope["method"], self._route(scope["path"]), status, time.monotonic() - began_s)
