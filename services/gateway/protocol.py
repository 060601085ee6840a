"""HTTP/1.1 as uvicorn reads it, with bounds that uvicorn leaves to a proxy: on a request's head, and on the time it takes."""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 65_536
HEAD_S: Final = 20.0
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
)
_REASON: Final = (
    b'{"error":{"message":"the request\'s head is larger than %d bytes","type":"invalid_request_error",'
    b'"param":null,"code":"head_too_large"}}' % HEAD_BYTES_MAX
)


class BoundedHttp(HttpToolsProtocol):
    """One connection. Its head may be larger than the bound by what one read brings."""

    head_s = HEAD_S
    _head_bytes = 0
    _in_head = True
    _impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._impatience is None:
                self._wait_for_head()
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE % (len(_REASON), _REASON))
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes begin another head."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def _wait_for_head(self) -> None:
        self._impatience = self.loop.call_later(self.head_s, self._lose_patience)

    def _stop_waiting(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _lose_patience(self) -> None:
        self._impatience = None
        # With an answer under way, what came is the beginning of a pipelined request: no reason to cut the answer.
        idle = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first
        if idle and not self.transport.is_closing():
            self.transport.close()
