"""A minimal HTTP/1.1 connection: one request at a time, whose answer is passed on as it arrives.

httptools parses straight from the socket, so that hundreds of streams cost the benchmark's client little processor time.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import SplitResult

import httptools

_ERROR_BYTES_MAX: Final = 65_536


class HttpRequestError(Exception):  # it is noted, not raised to a person
    """A request failed: the status is not 200, or the connection ended early."""


class HttpConnection(asyncio.Protocol):
    """One connection, made by `connect`.

    usable: whether it may carry another request. received: whether any byte of the last request's answer arrived.
    """

    def __init__(self) -> None:
        self.usable = False
        self.received = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._on_body: Callable[[bytes], None] | None = None
        self._done: asyncio.Future[None] | None = None
        self._error = bytearray()
        self._status = 0

    async def request(self, request: bytes, on_body: Callable[[bytes], None]) -> None:
        """Send a request and pass the body of a 200 to `on_body`. Raises HttpRequestError."""
        assert self.usable
        assert self._transport is not None
        self.usable = self.received = False
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
            raise HttpRequestError(f"HTTP {self._status}: {self._error.decode(errors='replace').strip()[:300]}")

    def close(self) -> None:
        """Close the connection."""
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as create_connection makes it
        """Store the transport of the open socket."""
        self._transport = transport
        self.usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish the request of a closed socket; an answer without a length is complete then, which its reader finds out."""
        self.usable = False
        if self._status == 200 and exc is None:
            self._finish(None)
        else:
            self._finish(HttpRequestError(f"connection lost: {exc}" if exc else "connection closed"))

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the socket."""
        self.received = True
        if self._parser is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(HttpRequestError(f"not HTTP: {error}"))
            self.close()

    def on_headers_complete(self) -> None:
        """Store the status that the parser found."""
        assert self._parser is not None
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body, or keep it as the text of an error."""
        if self._status != 200:
            self._error += body[: _ERROR_BYTES_MAX - len(self._error)]
        elif self._on_body is not None:
            self._on_body(body)

    def on_message_complete(self) -> None:
        """Finish the request: the parser found the end of the answer."""
        assert self._parser is not None
        if self._parser.should_keep_alive():
            self.usable = True
        elif self._transport is not None:
            self._transport.close()
        self._finish(None)

    def _finish(self, error: HttpRequestError | None) -> None:
        self._on_body = None
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)


async def connect(url: SplitResult) -> HttpConnection:
    """Open a connection to the URL's host. Raises OSError."""
    secure = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if secure else 80)
    _, connection = await asyncio.get_running_loop().create_connection(
        HttpConnection, url.hostname or "", port, ssl=secure
    )
    return connection
