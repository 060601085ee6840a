"""One HTTP/1.1 connection: a request at a time, its answer handed on as it arrives.

httptools parses; there is nothing between it and the socket, so that hundreds of streams cost a benchmark's client little.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult

import httptools

_ERROR_BYTES_MAX: Final = 65_536


class HttpFault(Exception):  # noqa: N818  # it is noted, not raised to a person
    """An answer that is not one: a status other than 200, or a connection that ended early."""


class HttpConnection(asyncio.Protocol):
    """Made by `connect`. usable: whether it may carry another request. heard: whether anything came of the last one's answer."""

    def __init__(self) -> None:
        self.usable = False
        self.heard = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._on_body: Callable[[bytes], None] | None = None
        self._done: asyncio.Future[None] | None = None
        self._error = bytearray()
        self._status = 0

    async def ask(self, request: bytes, on_body: Callable[[bytes], None]) -> None:
        """Send a request and hand the body of a 200 to `on_body`. Raises HttpFault."""
        assert self.usable
        assert self._transport is not None
        self.usable = self.heard = False
        self._parser = httptools.HttpResponseParser(self)
        self._on_body = on_body
        self._status = 0
        self._error.clear()
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        except BaseException:
            self.close()
            raise
        if self._status != 200:
            raise HttpFault(f"HTTP {self._status}: {self._error.decode(errors='replace').strip()[:300]}")

    def close(self) -> None:
        """End the connection."""
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as create_connection makes it
        """The socket is there."""
        self._transport = transport
        self.usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; an answer without a length is complete then, which its reader finds out."""
        self.usable = False
        if self._status == 200 and exc is None:
            self._finish(None)
        else:
            self._finish(HttpFault(f"connection lost: {exc}" if exc else "connection closed"))

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self.heard = True
        if self._parser is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(HttpFault(f"not HTTP: {error}"))
            self.close()

    def on_headers_complete(self) -> None:
        """The parser knows the status."""
        assert self._parser is not None
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """The parser found a part of the body."""
        if self._status != 200:
            self._error += body[: _ERROR_BYTES_MAX - len(self._error)]
        elif self._on_body is not None:
            self._on_body(body)

    def on_message_complete(self) -> None:
        """The parser found the end."""
        assert self._parser is not None
        if self._parser.should_keep_alive():
            self.usable = True
        elif self._transport is not None:
            self._transport.close()
        self._finish(None)

    def _finish(self, fault: HttpFault | None) -> None:
        self._on_body = None
        if self._done is not None and not self._done.done():
            if fault is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(fault)


async def connect(url: SplitResult) -> HttpConnection:
    """Open a connection to the URL's host. Raises OSError."""
    secure = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if secure else 80)
    _, connection = await asyncio.get_running_loop().create_connection(
        HttpConnection, url.hostname or "", port, ssl=secure
    )
    return connection
