"""What the gateway counts itself, and the middleware that measures every HTTP request."""

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
    """Counted in the HTTP thread, told in the actor's: never while one is half counted.

    active: generation requests under way.
    """

    def __init__(self, active: Callable[[], int]) -> None:
        self.watchers = 0
        self._active = active
        self._requests = HistogramFamily(instruments.HTTP_DURATION)
        self._counting = threading.Lock()

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._counting:
            self._requests.observe(seconds, (method if method in _METHODS else _OTHER, route, status))

    def values(self) -> Iterator[MetricValue]:
        """What they stand at."""
        with self._counting:
            requests = list(self._requests.values())
        yield from requests
        yield MetricValue(instruments.HTTP_ACTIVE, self._active())
        yield MetricValue(instruments.CONSOLES, self.watchers)


class RouteNames:
    """Names a path by the route that it belongs to, so that there are few names: `other` for what leads nowhere."""

    def __init__(self, paths: Iterable[str]) -> None:
        paths = tuple(paths)
        self._whole = {each for each in paths if "{" not in each}
        self._begun = sorted((each for each in paths if "{" in each), key=len, reverse=True)

    def of(self, path: str) -> str:
        """A path's route."""
        if path in self._whole:
            return path
        return next((each for each in self._begun if path.startswith(each[: each.index("{")])), "other")


class Measured:
    """An application whose requests are timed. route: what a path is called, of which there must be few."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, route: Callable[[str], str]) -> None:
        self._app = app
        self._metrics = metrics
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status = time.monotonic(), 499  # what others log for a client that left before the answer

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, told)
        finally:
            self._metrics.request(scope["method"], self._route(scope["path"]), status, time.monotonic() - began_s)
