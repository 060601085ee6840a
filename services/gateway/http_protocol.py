"""uvicorn's HTTP/1.1 with limits that it leaves to a proxy: on bytes that are not body, on time, on pipelined requests."""

import asyncio
import re
from collections.abc import Callable
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 65_536
HEAD_S: Final = 20.0
PIPELINED_MAX: Final = 16
_LINGER_S: Final = 2.0
_RESPONSE: Final = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
_REASON: Final = b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"%b"}}'
_UPGRADE_TOKEN: Final = re.compile(rb"[ \t]*(upgrade|http2-settings)[ \t]*", re.IGNORECASE)


def _error_response(status: bytes, message: bytes, code: bytes) -> bytes:
    reason = _REASON % (message, code)
    return _RESPONSE % (status, len(reason), reason)


_HEAD_TOO_LARGE: Final = _error_response(
    b"431 Request Header Fields Too Large",
    b"the request's head, with chunk extensions and trailers, is larger than %d bytes" % HEAD_BYTES_MAX,
    b"head_too_large",
)
_INVALID: Final = _error_response(b"400 Bad Request", b"the request is not valid HTTP/1.1", b"invalid_http")
_HOST: Final = _error_response(b"400 Bad Request", b"the request needs one Host header, and only one", b"invalid_http")


class _RequestRefused(Exception):  # noqa: N818  # not an error: it stops the parser
    """Raised in parser callbacks to refuse the request being parsed with this response."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class _ResponseTransport:
    """A transport for writing responses whose `close` calls the protocol instead of the transport."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class BoundedHttpProtocol(HttpToolsProtocol):
    """One HTTP connection with limits on head size, time and pipelining.

    The limit of HEAD_BYTES_MAX is on all bytes of a request that are neither body nor a plain chunk's framing: head, chunk
    extensions, trailers. A head that follows another request in the same read may exceed it by that read's bytes.
    """

    head_s = HEAD_S
    _head_bytes = 0  # of the present request, as far as it was read
    _in_head = True  # whether the next bytes belong to a head, or no request has begun
    _chunk_bytes = 0  # body bytes of the present chunk
    _reading_stopped = False  # whether what still comes is thrown away
    _lingering = False  # whether our side is closed, and the client's is waited for
    _head_without_upgrade: bytes | None = None  # the present head without its offer of an upgrade, to be parsed again
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, a head only up to its limit, and count those that are not body."""
        self._unset_keepalive_if_required()
        while data and not self._reading_stopped and not self.transport.is_closing():
            if self._in_head and self._read_timer is None:
                self._wait_for_request()
            room = HEAD_BYTES_MAX - self._head_bytes if self._in_head else len(data)
            piece, data = (data, b"") if room >= len(data) else (data[:room], data[room:])
            self._head_bytes += len(piece)
            left = self._parse(piece)
            data = left + data if left else data
            # Of a request that began inside this piece only the body was counted, downwards.
            self._head_bytes = max(self._head_bytes, 0)
            too_large = self._head_bytes > HEAD_BYTES_MAX or (self._in_head and self._head_bytes == HEAD_BYTES_MAX)
            if too_large and not self._reading_stopped:
                self._refuse(_HEAD_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser could not read."""
        del msg
        self._refuse(_INVALID)

    def on_message_begin(self) -> None:
        """Begin another request; refuse it if PIPELINED_MAX are waiting already."""
        if len(self.pipeline) >= PIPELINED_MAX:
            raise _RequestRefused(_INVALID)  # never said: the answers before it end the connection
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header line; trailers are ignored."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check a complete head: one Host, no CONNECT; offers of another protocol are left out."""
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            raise _RequestRefused(_HOST)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _RequestRefused(_INVALID)
            self._head_without_upgrade = self._without_upgrade(version)
            return
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()
        self.cycle.transport = _ResponseTransport(self.transport, self._close_after_answer)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Take body bytes, which do not count here; `read_body` limits them."""
        self._head_bytes -= len(body)
        self._chunk_bytes += len(body)
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Begin a chunk."""
        self._chunk_bytes = 0

    def on_chunk_complete(self) -> None:
        """End a chunk; its size in plain digits and two line ends are not counted."""
        if self._chunk_bytes:
            self._head_bytes -= len(b"%x\r\n\r\n" % self._chunk_bytes)

    def on_message_complete(self) -> None:
        """End a request; the next bytes begin another head."""
        if self._head_without_upgrade is not None:
            return
        self._in_head = True
        self._head_bytes = 0
        self._stop_waiting()
        if self.cycle.response_complete:  # nothing else waits for the client any more
            self._wait_for_request()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Answer the next request or wait for it; close the connection when no more is read."""
        if self._lingering:
            self.server_state.total_requests += 1
            return
        last = not self.pipeline
        super().on_response_complete()
        if not last or self.transport.is_closing():
            return
        if self._reading_stopped:
            self._unset_keepalive_if_required()
            self._half_close()
        elif not self._in_head:
            self._wait_for_request()  # the rest of this one is thrown away, but not for ever

    def _parse(self, piece: bytes) -> bytes:
        """Feed the parser. Returns what is to be parsed next, after an offer of another protocol was left out."""
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if self._head_without_upgrade is None:
                self._refuse(_INVALID)
                return b""
            again, self._head_without_upgrade = self._head_without_upgrade, None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
            self._head_bytes = 0
            return again + piece[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.answer if isinstance(cause, _RequestRefused) else _INVALID)
        return b""

    def _without_upgrade(self, version: str) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                kept = b",".join(each for each in value.split(b",") if not _UPGRADE_TOKEN.fullmatch(each))
                lines.append(b"connection: %b" % kept)
            elif name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, answer: bytes) -> None:
        """Refuse the request with this response and read no more; an earlier response under way becomes the last one."""
        self._reading_stopped = True
        self._stop_waiting()
        cycle = self.cycle
        if self._in_head:
            if cycle is not None and not cycle.response_complete:  # type: ignore[redundant-expr]  # None at first
                return
        elif self.pipeline:
            self.pipeline.popleft()
            return
        elif cycle.response_complete:
            self._half_close()
            return
        elif cycle.response_started:
            self.transport.close()
            return
        else:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(answer)
        self._half_close()

    def _close_after_answer(self) -> None:
        if self._in_head and not self._reading_stopped:
            self.transport.close()
        else:
            self._half_close()

    def _half_close(self) -> None:
        """Close our side now and the connection later: closing with unread bytes would destroy the response in transit."""
        if self._lingering or self.transport.is_closing():
            return
        self._reading_stopped = self._lingering = True
        self._stop_waiting()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._read_timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self._read_timer = self.loop.call_later(self.head_s, self._on_read_timeout)

    def _stop_waiting(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        self._read_timer = None
        # With an answer under way, what came is the beginning of a pipelined request: no reason to cut the answer.
        idle = self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first
        if idle and not self.transport.is_closing():
            self.transport.close()
